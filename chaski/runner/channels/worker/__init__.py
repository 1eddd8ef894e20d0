"""A model in its own process, whose death the rest of the program survives.

`client.Worker` is the parent's end, `python -m chaski.runner.channels.worker` the process itself. They send
each other the typed values of `codec.py` over a socket without a name, so no other process can reach it.
"""
