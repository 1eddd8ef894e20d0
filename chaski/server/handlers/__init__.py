"""One thin function per endpoint: a dialect reads, `ChatService` or the store answers, the dialect writes."""

from __future__ import annotations
