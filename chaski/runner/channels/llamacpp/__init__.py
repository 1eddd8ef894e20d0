"""The engine llama.cpp, for architectures that have no file here: the same calls, answered by `xllamacpp`.

Runs in a worker's process only. Its answers do not keep our promise of the same bits: they may change with
the batch, with what is cached, and with the number of threads.
"""

from chaski.runner.channels.llamacpp.channel import LlamaCppChannel

__all__ = ["LlamaCppChannel"]
