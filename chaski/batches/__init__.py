"""Batches: files of requests that are answered one and all, over interruptions."""
