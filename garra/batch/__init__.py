"""Batches: files of requests, answered by one or several servers, each exactly once."""
