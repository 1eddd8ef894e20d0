"""Models behind a channel of calls: threads of this process, workers, event loops, and llama.cpp."""
