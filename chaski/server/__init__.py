"""The HTTP server: three dialects over the same models, each of which computes in a process of its own.

    handlers (thin)  ── request ──>  dialects (pure: JSON to typed requests, typed events to JSON)
        │
        └── chat_service ── template, truncation, parser ──> models (which are loaded, who waits) ──> worker

The server itself never computes. Nothing here knows tensors; nothing below knows HTTP.
"""

from __future__ import annotations
