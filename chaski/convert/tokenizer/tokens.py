"""A builder for the token list, in which every id of the model has a token, a type and a score."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.convert.metadata import Metadata
from chaski.convert.tokenizer.files import AddedToken
from chaski.errors import TokenizerError
from chaski.text.tokenizer.vocabulary import PREFIX, TokenType

__all__ = ["BYTE", "SPACE", "TokenList", "require_text"]

BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # how SentencePiece spells a byte
SPACE = "\u2581"  # how SentencePiece spells a space

# Control tokens that their families do not mark as special.
_CONTROL = frozenset({"<pad>", "<mask>", "<2mass>", "[@BOS@]"})
_CONTROL_MARKS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
_PAD_SCORE = -10000.0
_ADDED_SCORE = -1000.0


class TokenList:
    """Tokens by id. Ids without a token stay unused padding, because the embedding has rows for them."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self.tokens = [f"[PAD{i}]" for i in range(size)]
        self.types = [TokenType.UNUSED] * size
        self.scores = [_PAD_SCORE] * size

    def put(self, token_id: int, token: str, type: TokenType, score: float = 0.0) -> None:
        if not 0 <= token_id < len(self.tokens):
            size = len(self.tokens)
            raise TokenizerError(
                f"{self._path}: token {token!r:.80} has id {token_id}; the model has {size} tokens"
            )
        require_text(self._path, f"token {token_id}", token)
        self.tokens[token_id] = token
        self.types[token_id] = type
        self.scores[token_id] = score

    def put_all(self, ids: Mapping[str, int]) -> None:
        """Put the normal tokens of a vocabulary."""
        for token, token_id in ids.items():
            self.put(token_id, token, TokenType.NORMAL)

    def add(self, tokens: Iterable[AddedToken]) -> None:
        """The added tokens. Those that are not control tokens are spelled with plain spaces."""
        for token in tokens:
            if token.special or _looks_like_control(token.content):
                self.put(token.id, token.content, TokenType.CONTROL, _ADDED_SCORE)
            else:
                text = token.content.replace(SPACE, " ")
                self.put(token.id, text, TokenType.USER_DEFINED, _ADDED_SCORE)

    def ids(self) -> dict[str, int]:
        """Return the id of each used token. For equal tokens it is the first id."""
        used = (i for i, type in enumerate(self.types) if type is not TokenType.UNUSED)
        found: dict[str, int] = {}
        for i in used:
            found.setdefault(self.tokens[i], i)
        return found

    def metadata(self, model: str, pre: str, *, scores: bool = False) -> Metadata:
        entries: Metadata = {
            f"{PREFIX}model": model,
            f"{PREFIX}pre": pre,
            f"{PREFIX}tokens": self.tokens,
            f"{PREFIX}token_type": np.array(self.types, np.int32),
        }
        if scores:
            entries[f"{PREFIX}scores"] = self._stored_scores()
        return entries

    def _stored_scores(self) -> NDArray[np.float32]:
        scores = np.array(self.scores)
        wrong = np.flatnonzero(~(np.abs(scores) <= np.finfo(np.float32).max))
        if wrong.size:
            raise TokenizerError(
                f"{self._path}: token {wrong[0]} has the score {scores[wrong[0]]}, which is no float32"
            )
        return scores.astype(np.float32)


def require_text(path: Path, name: str, value: Any) -> None:
    """Raise TokenizerError for any other value than a string that UTF-8 can hold."""
    try:
        str.encode(value)
    except (TypeError, UnicodeEncodeError) as error:  # JSON can contain half of a surrogate pair
        raise TokenizerError(f"{path}: {name} is {value!r:.80}, which is no text: {error}") from None


def _looks_like_control(token: str) -> bool:
    return token in _CONTROL or any(
        token.startswith(begin) and token.endswith(end) for begin, end in _CONTROL_MARKS
    )
