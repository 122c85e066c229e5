"""The life of engines: state machines, processes, runners and the fleet."""
