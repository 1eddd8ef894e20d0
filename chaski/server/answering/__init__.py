"""Answering for handlers: typed requests in, typed events out, the same for every API and engine."""
