"""Token ids that llama.cpp does not report: for each piece of text, all ids but the last one.

It holds text back until characters are complete, or until the text cannot be part of a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cached_property

from chaski.text.tokenizer.bpe import byte_level_bytes
from chaski.text.tokenizer.pieces import piece_bytes
from chaski.text.tokenizer.vocabulary import Vocabulary

__all__ = ["LostIds"]

_MOST = 32  # tokens of one piece; a text held back for a stop string may have more


class LostIds:
    """Finds such ids from the bytes of the text, if no other tokens have the same bytes."""

    def __init__(self, vocabulary: Vocabulary, model: str) -> None:
        """`model` is the kind of the tokenizer, `tokenizer.ggml.model`."""
        self._vocabulary = vocabulary
        self._bytes_of = byte_level_bytes if model == "gpt2" else piece_bytes

    def before(self, text: str, last_id: int, count: int, is_held: bool) -> Sequence[int]:
        """Return the ids of the `count` tokens before the last one of `text`, or an empty sequence if they
        are ambiguous.

        is_held: whether the text may have been held back for a stop string, not only for complete characters.
        """
        data, end = text.encode(), self._spelling(last_id)
        if not 0 < count <= _MOST or not end or not data.endswith(end):
            return ()
        found = self._cuts(data[: -len(end)], count, is_held)
        return found[0] if len(found) == 1 else ()

    def _cuts(self, data: bytes, count: int, is_held: bool) -> list[tuple[int, ...]]:
        """Return the ways to spell bytes with `count` tokens, at most two."""
        ways: list[list[tuple[int, ...]]] = [[] for _ in range(len(data) + 1)]
        ways[0] = [()]
        for _ in range(count):
            longer: list[list[tuple[int, ...]]] = [[] for _ in ways]
            for begin, before in enumerate(ways):
                for end in range(begin + 1, len(data) + 1) if before else ():
                    if is_held or _is_cut(data[:end]):
                        ids = self._ids.get(data[begin:end], ())
                        more = [(*way, token_id) for way in before for token_id in ids]
                        longer[end] = [*longer[end], *more][:2]
            ways = longer
        return ways[-1]

    def _spelling(self, token_id: int) -> bytes:
        return self._bytes_of(self._vocabulary.tokens[token_id], int(self._vocabulary.types[token_id]))

    @cached_property
    def _ids(self) -> dict[bytes, tuple[int, ...]]:
        """The ids of tokens by their bytes, at most two for each."""
        found: dict[bytes, tuple[int, ...]] = {}
        types = self._vocabulary.types.tolist()
        for token_id, (token, kind) in enumerate(zip(self._vocabulary.tokens, types, strict=True)):
            data = self._bytes_of(token, kind)
            found[data] = (*found.get(data, ()), token_id)[:2]
        return found


def _is_cut(data: bytes) -> bool:
    """Return whether the last character of a text is incomplete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return bool(decoder.getstate()[0])
