"""A model in its own process, so that a crash of the model does not end the program.

`client.Worker` is the parent's end; `python -m chaski.runner.channels.worker` is the process itself. They
exchange the typed values of `codec.py` over an unnamed socket, so no other process can connect to it.
"""
