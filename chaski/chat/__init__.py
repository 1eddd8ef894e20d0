"""One chat layer: from a conversation to the tokens of a prompt, and from an answer's text to typed events.

Python, the commands and the server all use it, so that a model gets the same prompt and gives the same answer
everywhere. It knows models by their files and computes nothing.
"""
