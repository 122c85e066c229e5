"""What the clients of each API say and expect. Pure: bytes and JSON in, bytes and JSON out."""
