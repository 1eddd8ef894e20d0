"""One thin function an endpoint: a dialect reads, `ChatService` or the store answers, the dialect writes."""

from __future__ import annotations
