"""A model in a process of its own, whose death the rest of the program survives.

`client.Worker` is the parent's end, `python -m chaski.runner.service.worker` the process itself. They talk
over a socket without a name, so nobody else can reach it, in the typed values of `service/messages.py` as
JSON.
"""
