"""`python -m garra` is `garra`."""

from garra.cli.main import run

if __name__ == "__main__":
    run()
