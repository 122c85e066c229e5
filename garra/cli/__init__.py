"""The `garra` command."""
