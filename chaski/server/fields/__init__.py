"""The fields of requests: how they are read, which there are, and what happens to all others."""
