"""garra: one workstation, one dependable OpenAI endpoint."""

__version__ = "0.1.0"
