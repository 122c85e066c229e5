"""Tuning: which settings are tried, how each is measured, and what is worth keeping."""
