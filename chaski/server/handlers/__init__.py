"""One thin function per endpoint. A dialect reads the request, a service answers it, the dialect replies."""

from __future__ import annotations
