"""Channels of calls to models: threads of this process, workers, event loops, and llama.cpp."""
