"""Everything a machine without a network needs, in one file."""
