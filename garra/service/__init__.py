"""garra as a service of systemd."""
