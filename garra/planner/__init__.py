"""From a profile and a host to one concrete launch plan."""
