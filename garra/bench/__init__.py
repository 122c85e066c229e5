"""Measuring: workloads, load, what came of it, and whether two results differ."""
