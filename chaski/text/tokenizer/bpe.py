"""Byte-pair encoding with a list of merges, `tokenizer.ggml.model` = `gpt2` or `gemma4`.

Text is cut into words, and pairs are merged in the order of the file's merge list. The words are UTF-8 bytes
spelled as printable characters (GPT-2, Radford et al. 2019), or text as it is, spelled as SentencePiece does.
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
    """GPT-2's spelling: printable Latin-1 bytes are themselves, the others follow from U+0100 on."""
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
        """Token ids of each text. The first call waits for the merge table and raises `TokenizerError` when
        a merge has no two parts, or it or its result is not in the vocabulary."""
        table = self._table
        normal = map(self._normalized, texts)
        return [table.encode(text, self._pretokenizer.word_ends(text)) for text in normal]

    def finds(self, user_defined: str) -> bool:
        """Return False: such tokens are plain text, which is found before it is spelled."""
        return False

    @abstractmethod
    def token_bytes(self, token: str, kind: int) -> bytes:
        """The bytes that the token spells."""

    @property
    @abstractmethod
    def _byte_tokens(self) -> Sequence[str]:
        """The token that stands alone for each of the 256 bytes."""

    @abstractmethod
    def _normalized(self, text: str) -> str:
        """The text that is cut into words."""

    @cached_property
    def _table(self) -> _native.PairMerges:
        table = self._begun or self._begin()
        self._warn_of_bytes(table)
        if table.fault is not None:
            raise TokenizerError(_fault(table, self._merges[table.fault], table.fault))
        return table

    def _begin(self) -> _native.PairMerges:
        """The tokens that text can turn into, by their spelling, and their merges.

        Control tokens are left out; of equal tokens the last counts.
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
            _log.warning("%d byte values have no token and are lost, %#04x first", len(missing), missing[0])


def byte_level_bytes(token: str, kind: int) -> bytes:
    """The bytes that a token spells in printable characters; see `ByteLevelBPE.token_bytes`."""
    if kind == TokenType.USER_DEFINED or not _BYTES.keys() >= set(token):
        return token.encode("utf-8", "surrogateescape")
    return bytes([_BYTES[character] for character in token])


class ByteLevelBPE(PairEncoding):
    """Tokens are bytes, spelled as printable characters."""

    def token_bytes(self, token: str, kind: int) -> bytes:
        """The bytes that the token spells. User-defined tokens, and others with foreign characters in them,
        are their own text."""
        return byte_level_bytes(token, kind)

    @property
    def _byte_tokens(self) -> Sequence[str]:
        return _CHARACTERS

    def _normalized(self, text: str) -> str:
        return _composed(text) if self._pretokenizer.nfc else text


class TextBPE(PairEncoding):
    """Tokens are text, with U+2581 for a space. Characters without a token are spelled by byte tokens."""

    def token_bytes(self, token: str, kind: int) -> bytes:
        """The byte that a byte token names; else the text of the token, with spaces for U+2581. The text of
        user-defined tokens is what stands in the file."""
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
    return f"{PREFIX}merges[{index}] is {left!r} and {right!r}, but {lacking!r} is no token"


def _composed(text: str) -> str:
    """The text in Unicode NFC.

    Long runs of marks, which Python would sort in quadratic time, are put in order before.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", compiled(_MANY_MARKS).sub(_ordered, text))


def _ordered(marks: regex.Match[str]) -> str:
    return "".join(sorted(marks[0], key=unicodedata.combining))
