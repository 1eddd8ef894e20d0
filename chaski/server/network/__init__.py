"""The network layer below the handlers: addresses, connections and bodies, within limits."""
