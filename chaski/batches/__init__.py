"""Batches: files of requests that are all answered, even after interruptions."""
