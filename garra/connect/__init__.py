"""Other programs' configurations for this garra."""
