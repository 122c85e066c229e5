"""The engine: its pinned sources, its build, its command line and its HTTP surface."""
