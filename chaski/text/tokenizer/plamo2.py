"""PLaMo 2's tokenizer, `tokenizer.ggml.model` = `plamo2`: the pieces with the highest sum of scores.

Characters without a piece are spelled by byte tokens. Scores are compared as integers, and of equal sums the
one whose first piece is longer counts, as in the published tokenizer.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from chaski.errors import TokenizerError
from chaski.text.tokenizer.codec import Codec
from chaski.text.tokenizer.pieces import byte_value, find_bytes
from chaski.text.tokenizer.spellings import Spellings
from chaski.text.tokenizer.vocabulary import PREFIX, TokenType, Vocabulary

__all__ = ["BestPieces"]

_STEPS = 10_000  # of a score's unit
_UNKNOWN = -1_000 * _STEPS  # the score of a character that bytes spell
_NO_PIECE = -2_000 * _STEPS  # pieces with this score or less are never used


class BestPieces(Codec):
    """Encodes text with pieces and their scores."""

    prefix_space = False

    def __init__(self, vocabulary: Vocabulary, scores: NDArray[np.float32]) -> None:
        self._vocabulary = vocabulary
        self._scores = np.round(scores.astype(np.float64) * _STEPS).astype(np.int64).tolist()
        self._bytes = find_bytes(vocabulary)
        if not self._bytes:
            raise TokenizerError(
                f"{PREFIX}token_type: no token is a byte, but PLaMo 2's tokenizer needs all 256"
            )

    def encode(self, texts: list[str], continues: bool = False) -> list[list[int]]:
        """Return the token ids of each text."""
        return [self._ids(text) for text in texts]

    def finds(self, user_defined: str) -> bool:
        """Return False: such tokens are found before text is cut into pieces."""
        return False

    def token_bytes(self, token: str, kind: int) -> bytes:
        """Return the byte that a byte token names, else the text of the piece."""
        if kind == TokenType.BYTE:
            return bytes([byte_value(token)])
        return token.encode("utf-8", "surrogateescape")

    def _ids(self, text: str) -> list[int]:
        best = self._best_pieces(text)
        ids: list[int] = []
        position = 0
        while position < len(text):
            length, token_id = best[position]
            ids += (
                (self._bytes[byte] for byte in text[position].encode()) if token_id is None else (token_id,)
            )
            position += length
        return ids

    def _best_pieces(self, text: str) -> list[tuple[int, int | None]]:
        """Return the length and the id of the first piece of the best spelling from each place on."""
        sums = [0] * (len(text) + 1)
        pieces: list[tuple[int, int | None]] = [(1, None)] * len(text)
        for position in reversed(range(len(text))):
            best = None
            for length, token_id in self._spellings.at(text, position):
                total = sums[position + length] + self._scores[token_id]
                if best is None or total > best:
                    best, pieces[position] = total, (length, token_id)
            unknown = sums[position + 1] + _UNKNOWN
            if best is None or unknown > best:
                best, pieces[position] = unknown, (1, None)
            sums[position] = best
        return pieces

    @cached_property
    def _spellings(self) -> Spellings[str]:
        tokens, scores = self._vocabulary.tokens, self._scores
        normal = self._vocabulary.ids_of_type(TokenType.NORMAL)
        return Spellings({tokens[i]: i for i in normal if scores[i] > _NO_PIECE})
