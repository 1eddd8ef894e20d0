"""Requests over HTTP: who may send them, how they are answered, and the form of answers and errors."""
