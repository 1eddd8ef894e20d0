"""A model in a process of its own: what happens to it there, the rest of the program survives.

`Worker` is the parent's end, `python -m chaski.runner.worker` the process itself. Between them runs a socket
without a name, so nobody else can reach it, with the typed values of `runner/messages.py` as JSON.
"""

from chaski.runner.worker.client import Worker

__all__ = ["Worker"]
