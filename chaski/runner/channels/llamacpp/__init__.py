"""The engine llama.cpp, for architectures that the native engine does not implement: `xllamacpp` answers the
same calls.

It runs only in a worker's process. Its answers do not keep chaski's promise of identical bits: they may
change with the batch, the cache and the number of threads.
"""

from chaski.runner.channels.llamacpp.channel import LlamaCppChannel

__all__ = ["LlamaCppChannel"]
