"""The live view of a running garra in a terminal."""
