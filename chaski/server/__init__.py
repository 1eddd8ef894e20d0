"""The HTTP server: three dialects over the same models, each of which computes in a process of its own.

    handlers (thin)  ── request ──>  dialects (pure: JSON to typed requests, typed events to JSON)
        │
        └── service ── one typed call ──> models (which are loaded, who waits) ──> worker (prompt, answer)

The server itself never computes. Nothing here knows tensors; nothing below knows HTTP.
"""

from __future__ import annotations
