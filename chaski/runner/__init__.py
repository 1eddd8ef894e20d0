"""Running sequences: batches, the prefix cache, and the stream from tokens to events.

Knows models, caches and tokenizers; knows nothing of HTTP or of any API dialect.
"""

from chaski.chat.events import Done, Event, Text

__all__ = ["Done", "Event", "Text"]
