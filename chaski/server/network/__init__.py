"""The network below the handlers: addresses, connections, and bodies in bounded time and memory."""
