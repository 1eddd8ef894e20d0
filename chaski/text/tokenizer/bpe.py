"""Byte-pair encoding with a list of merges, `tokenizer.ggml.model` = `gpt2` or `gemma4`.

The text is cut into words, and pairs are merged in the order of the file's merge list. Words are UTF-8 bytes
spelled as printable characters (GPT-2, Radford et al. 2019), or plain text in SentencePiece's spelling.
The package `regex` finds the words, and the native core merges in the file's own lists.
"""

from __future__ import annotations

import logging
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chaski import _native
from chaski.errors import TokenizerError
from chaski.text.tokenizer.pieces import SPACE, piece_bytes
from chaski.text.tokenizer.pretokenizers import PreTokenizer, compiled
from chaski.text.tokenizer.vocabulary import PREFIX, TokenType, Vocabulary, utf8_strings

if TYPE_CHECKING:
    import regex

_log = logging.getLogger(__name__)


def _byte_characters() -> list[str]:
    """Return GPT-2's spelling: printable Latin-1 bytes as themselves, the others as U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_CHARACTERS = _byte_characters()
_BYTES = {character: byte for byte, character in enumerate(_CHARACTERS)}
_NAMED_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_MANY_MARKS = r"\P{ccc=0}{32,}"
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


class PairEncoding(ABC):
    """Encodes text with a vocabulary, its merges and a pre-tokenizer."""

    prefix_space = False

    def __init__(self, vocabulary: Vocabulary, merges: Sequence[str], pretokenizer: PreTokenizer) -> None:
        self._vocabulary = vocabulary
        self._merges = merges
        self._pretokenizer = pretokenizer
        self._begun: _native.PairMerges | None = None

    def prepare(self) -> None:
        """Begin to build the merge table, in a separate thread.

        Raises `TokenizerError` for tokens or merges that are not UTF-8.
        """
        if self._begun is None:
            self._begun = self._begin()

    def encode(self, texts: list[str], continues: bool = False) -> list[list[int]]:
        """Return the token ids of each text.

        The first call waits for the merge table. It raises `TokenizerError` if a merge does not have two
        parts, or if a part or the result is not in the vocabulary.
        """
        table = self._table
        normal = map(self._normalized, texts)
        return [table.encode(text, self._pretokenizer.word_ends(text)) for text in normal]

    def finds(self, user_defined: str) -> bool:
        """Return False: such tokens are plain text, which is found before it is spelled."""
        return False

    @abstractmethod
    def token_bytes(self, token: str, kind: int) -> bytes:
        """Return the bytes that the token spells."""

    @property
    @abstractmethod
    def _byte_tokens(self) -> Sequence[str]:
        """Return the token that stands alone for each of the 256 bytes."""

    @abstractmethod
    def _normalized(self, text: str) -> str:
        """Return the text that is cut into words."""

    @cached_property
    def _table(self) -> _native.PairMerges:
        table = self._begun or self._begin()
        self._warn_of_bytes(table)
        if table.fault is not None:
            raise TokenizerError(_fault(table, self._merges[table.fault], table.fault))
        return table

    def _begin(self) -> _native.PairMerges:
        """Build the table of the spellings of all tokens that text can become, and their merges.

        Control tokens are omitted; of equal tokens the last counts.
        """
        tokens, merges = utf8_strings(self._vocabulary.tokens, "tokens"), utf8_strings(self._merges, "merges")
        rules = self._pretokenizer
        return _native.PairMerges(
            tokens.data,
            tokens.offsets,
            merges.data,
            merges.offsets,
            unused=np.array(self._vocabulary.ids_of_type(TokenType.CONTROL), np.int64),
            byte_tokens=self._byte_tokens,
            takes_whole_words=rules.ignore_merges,
            is_byte_level=rules.byte_level,
        )

    def _warn_of_bytes(self, table: _native.PairMerges) -> None:
        missing = [
            byte
            for byte, token in enumerate(self._byte_tokens)
            if byte not in _NEVER_IN_UTF8 and table.id_of(token) < 0
        ]
        if missing:
            # The vocabularies of common models lack such bytes, and their texts do not contain them.
            _log.info(
                "%d byte values have no token and are lost; the first is %#04x", len(missing), missing[0]
            )


def byte_level_bytes(token: str, kind: int) -> bytes:
    """Return the bytes that a token spells in printable characters; see `ByteLevelBPE.token_bytes`."""
    if kind == TokenType.USER_DEFINED or not _BYTES.keys() >= set(token):
        return token.encode("utf-8", "surrogateescape")
    return bytes([_BYTES[character] for character in token])


class ByteLevelBPE(PairEncoding):
    """Byte-pair encoding over bytes, spelled as printable characters."""

    def token_bytes(self, token: str, kind: int) -> bytes:
        """Return the bytes that the token spells.

        User-defined tokens, and others that contain foreign characters, stand for their own text.
        """
        return byte_level_bytes(token, kind)

    @property
    def _byte_tokens(self) -> Sequence[str]:
        return _CHARACTERS

    def _normalized(self, text: str) -> str:
        return _composed(text) if self._pretokenizer.nfc else text


class TextBPE(PairEncoding):
    """Byte-pair encoding over text, with U+2581 for a space and byte tokens for unknown characters."""

    def token_bytes(self, token: str, kind: int) -> bytes:
        """Return the byte that a byte token names, else the token's text with spaces for U+2581.

        The text of user-defined tokens is unchanged.
        """
        if kind == TokenType.USER_DEFINED:
            return token.encode("utf-8", "surrogateescape")
        return piece_bytes(token, kind)

    @property
    def _byte_tokens(self) -> Sequence[str]:
        return _NAMED_BYTES

    def _normalized(self, text: str) -> str:
        return text.replace(" ", SPACE)


def _fault(table: _native.PairMerges, merge: str, index: int) -> str:
    left, _, right = merge.partition(" ")
    lacking = next(token for token in (left, right, left + right) if table.id_of(token) < 0)
    return f"{PREFIX}merges[{index}] is {left!r} and {right!r}, but {lacking!r} is not a token"


def _composed(text: str) -> str:
    """Return the text in Unicode NFC.

    Long runs of combining marks are ordered first, because Python would sort them in quadratic time.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", compiled(_MANY_MARKS).sub(_ordered, text))


def _ordered(marks: regex.Match[str]) -> str:
    return "".join(sorted(marks[0], key=unicodedata.combining))
