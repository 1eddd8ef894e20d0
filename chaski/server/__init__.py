"""The HTTP server: three dialects over the same models. Each model computes in its own process.

    handlers (thin)  ── request ──>  dialects (pure: JSON to typed requests, typed events to JSON)
        │
        └── answering ── one typed call ──> models (loaded models, queues) ──> worker (prompt, answer)

The server itself never computes. It does not handle tensors, and the layers below it do not handle HTTP.
"""

from __future__ import annotations
