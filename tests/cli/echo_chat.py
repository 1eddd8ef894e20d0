"""A chat whose model has no weights and answers each message with its Python representation."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chaski.chat.defaults import Defaults
from chaski.chat.events import Done, Text
from chaski.cli.chat import chat
from chaski.cli.line_editor import preload
from chaski.cli.session import Session
from chaski.standard_streams import prepare_streams

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\rname:\tred\r\n"
UNICODE = "“x” … — 日"


class Echo:
    """The part of a model that a chat needs."""

    path, context, vocab_size, chat_template = "\x1b[31mecho", 10, 20, HOSTILE
    has_vision = False
    defaults = Defaults(
        system=HOSTILE,
        opening=[
            {"role": "system", "content": "unseen"},
            {"role": "user", "content": "knock knock\x1b[31m"},
            {"role": "assistant", "content": "who is\x1b[31m there?"},
        ],
    )

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[Text | Done]:
        asked = messages[-1]["content"]
        said = {"hostile": HOSTILE, "unicode": UNICODE}.get(asked, f"<{asked!r}>")
        for char in said:
            yield Text(char)
        if asked == "slow":
            time.sleep(1)
        yield Done(
            reason="stop",
            prompt_tokens=1,
            cached_tokens=0,
            generated_tokens=1,
            dropped_tokens=0,
            load_seconds=0.0,
            prefill_seconds=0.0,
            decode_seconds=0.0,
        )

    def close(self) -> None:
        pass


if __name__ == "__main__":
    prepare_streams()
    preload()
    session: Any = Session(Echo(), {}, name="echo")
    session.keeps_lines = "--history" in sys.argv
    chat(session)
