"""Byte-pair encoding with a list of merges, `tokenizer.ggml.model` = `gpt2` or `gemma4`.

Text is cut into words, and pairs are merged in the order of the file's merge list. The words are UTF-8 bytes
spelled as printable characters (GPT-2, Radford et al. 2019), or text as it is, spelled as SentencePiece does.
Hugging Face `tokenizers` does this; it is built from the file's own lists.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from chaski.errors import TokenizerError
from chaski.text.tokenizer.pieces import SPACE, piece_bytes
from chaski.text.tokenizer.pretokenizers import PreTokenizer
from chaski.text.tokenizer.vocabulary import TokenType, Vocabulary, string_list

if TYPE_CHECKING:
    import tokenizers

_log = logging.getLogger(__name__)


def _byte_characters() -> list[str]:
    """GPT-2's spelling: printable Latin-1 bytes are themselves, the others follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_CHARACTERS = _byte_characters()
_BYTES = {character: byte for byte, character in enumerate(_CHARACTERS)}
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


class PairEncoding(ABC):
    """Encodes text with a vocabulary, its merges and a pre-tokenizer."""

    prefix_space = False

    def __init__(self, vocabulary: Vocabulary, merges: Sequence[str], pretokenizer: PreTokenizer) -> None:
        self._vocabulary = vocabulary
        self._merges = merges
        self._pretokenizer = pretokenizer

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text. The first call builds the merge table and raises `TokenizerError` when a
        merge has no two parts, or it or its result is not in the vocabulary."""
        # Unlike `encode`, this one tracks no offsets (half the time and memory) and lets other threads run.
        return [encoding.ids for encoding in self._encoder.encode_batch_fast(texts, add_special_tokens=False)]

    def finds(self, user_defined: str) -> bool:
        """Return False: such tokens are plain text, which is found before it is spelled."""
        return False

    @abstractmethod
    def token_bytes(self, token: str, kind: int) -> bytes:
        """The bytes that the token spells."""

    @abstractmethod
    def _spell(self, encoder: tokenizers.Tokenizer, splits: list[tokenizers.pre_tokenizers.Split]) -> None:
        """Tell the encoder how text is spelled, and where it is cut."""

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        from tokenizers import Regex, Tokenizer
        from tokenizers.pre_tokenizers import Split

        encoder = Tokenizer(self._merge_table())
        self._spell(encoder, [Split(Regex(pattern), "isolated") for pattern in self._pretokenizer.patterns])
        return encoder

    def _merge_table(self) -> tokenizers.models.BPE:
        from tokenizers.models import BPE

        ids = self._ids()
        merges = string_list(self._merges, "merges")
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        # Checked here, because the library aborts on a result that is longer than every token.
        if not all(left + right in ids for left, right in pairs):
            raise TokenizerError(_first_fault(pairs, ids))
        rules = self._pretokenizer
        try:
            return BPE(ids, pairs, ignore_merges=rules.ignore_merges, byte_fallback=not rules.byte_level)
        except Exception as error:  # the library raises no narrower class
            raise TokenizerError(_first_fault(pairs, ids)) from error

    def _ids(self) -> dict[str, int]:
        """Id of each token that text can turn into: not of control tokens, and the last of equal ones."""
        ids = {token: i for i, token in enumerate(string_list(self._vocabulary.tokens, "tokens"))}
        for token_id in self._vocabulary.ids_of_type(TokenType.CONTROL):
            ids.pop(self._vocabulary.tokens[token_id], None)
        missing = [byte for byte, token in self._byte_tokens() if token not in ids]
        if missing:
            _log.warning("%d byte values have no token and are lost, %#04x first", len(missing), missing[0])
        return ids

    @abstractmethod
    def _byte_tokens(self) -> list[tuple[int, str]]:
        """The bytes that occur in text, each with the token that stands for it alone."""


class ByteLevelBPE(PairEncoding):
    """Tokens are bytes, spelled as printable characters."""

    def token_bytes(self, token: str, kind: int) -> bytes:
        """The bytes that the token spells. User-defined tokens, and others with foreign characters in them,
        are their own text."""
        if kind == TokenType.USER_DEFINED or not _BYTES.keys() >= set(token):
            return token.encode("utf-8", "surrogateescape")
        return bytes([_BYTES[character] for character in token])

    def _spell(self, encoder: tokenizers.Tokenizer, splits: list[tokenizers.pre_tokenizers.Split]) -> None:
        from tokenizers.normalizers import NFC
        from tokenizers.pre_tokenizers import ByteLevel, Sequence

        if self._pretokenizer.nfc:
            encoder.normalizer = NFC()
        encoder.pre_tokenizer = Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])

    def _byte_tokens(self) -> list[tuple[int, str]]:
        return [(byte, token) for byte, token in enumerate(_CHARACTERS) if byte not in _NEVER_IN_UTF8]


class TextBPE(PairEncoding):
    """Tokens are text, with U+2581 for a space. Characters without a token are spelled by byte tokens."""

    def token_bytes(self, token: str, kind: int) -> bytes:
        """The byte that a byte token names; else the text of the token, with spaces for U+2581. The text of
        user-defined tokens is what stands in the file."""
        if kind == TokenType.USER_DEFINED:
            return token.encode("utf-8", "surrogateescape")
        return piece_bytes(token, kind)

    def _spell(self, encoder: tokenizers.Tokenizer, splits: list[tokenizers.pre_tokenizers.Split]) -> None:
        from tokenizers.normalizers import Replace
        from tokenizers.pre_tokenizers import Sequence

        encoder.normalizer = Replace(" ", SPACE)
        encoder.pre_tokenizer = Sequence(splits)

    def _byte_tokens(self) -> list[tuple[int, str]]:
        return [(byte, f"<0x{byte:02X}>") for byte in range(256) if byte not in _NEVER_IN_UTF8]


def _first_fault(pairs: list[tuple[str, str]], ids: dict[str, int]) -> str:
    for index, (left, right) in enumerate(pairs):
        for token in (left, right, left + right):
            if token not in ids:
                return f"tokenizer.ggml.merges[{index}] is {left!r} and {right!r}, but {token!r} is no token"
    return "tokenizer.ggml.merges cannot be used"
