"""SentencePiece byte-pair encoding with scores (Kudo and Richardson 2018), `tokenizer.ggml.model` = `llama`.

A GGUF file has the content of a SentencePiece model file: pieces, scores, types and the normalizer's
settings. So chaski rebuilds the model file and lets the `sentencepiece` library do the work. Field numbers
are those of `sentencepiece_model.proto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.errors import TokenizerError
from chaski.text.tokenizer.codec import Codec
from chaski.text.tokenizer.pieces import SPACE, find_bytes, find_unknown, piece_bytes
from chaski.text.tokenizer.vocabulary import TokenType, Vocabulary, read_scalar, string_list

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

_MODEL_TYPE_BPE = 2


class NormalizerSettings(Struct, frozen=True):
    """The normalization of text; the defaults are those of Llama 2."""

    add_space_prefix: bool = True
    remove_extra_whitespaces: bool = False


AS_WRITTEN = NormalizerSettings(add_space_prefix=False)
"""The settings for a text that continues another one: its spaces stay unchanged."""


def read_normalizer(metadata: Mapping[str, object]) -> NormalizerSettings:
    """Return a file's settings of the normalizer, with defaults for missing keys."""
    prefix = read_scalar(metadata, "add_space_prefix", bool)
    remove = read_scalar(metadata, "remove_extra_whitespaces", bool)
    return NormalizerSettings(prefix is not False, remove is True)


class SentencePieceBPE(Codec):
    """Encodes text with pieces and their scores."""

    def __init__(
        self, vocabulary: Vocabulary, scores: NDArray[np.float32], normalizer: NormalizerSettings
    ) -> None:
        self._vocabulary = vocabulary
        self._scores = scores
        self._normalizer = normalizer

    @property
    def prefix_space(self) -> bool:
        """Return whether `encode` puts a space before every text."""
        return self._normalizer.add_space_prefix

    def encode(self, texts: list[str], continues: bool = False) -> list[list[int]]:
        """Return the token ids of each text.

        The first call builds the library's processor and raises `TokenizerError` for a vocabulary that
        SentencePiece refuses.
        """
        processor = self._continuing_processor if continues else self._processor
        ids: list[list[int]] = processor.encode(texts, num_threads=1)
        return ids

    def finds(self, user_defined: str) -> bool:
        """Return whether `encode` finds the token: one with U+2581, the normalizer's sign for a space."""
        return SPACE in user_defined

    def token_bytes(self, token: str, kind: int) -> bytes:
        """Return the byte that a byte token names, else the text of the piece with spaces for U+2581."""
        return piece_bytes(token, kind)

    @cached_property
    def _processor(self) -> SentencePieceProcessor:
        return self._built(self._normalizer)

    @cached_property
    def _continuing_processor(self) -> SentencePieceProcessor:
        return self._processor if self._normalizer == AS_WRITTEN else self._built(AS_WRITTEN)

    def _built(self, settings: NormalizerSettings) -> SentencePieceProcessor:
        from sentencepiece import SentencePieceProcessor

        model = self._model_file(settings)
        try:
            return SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(
                f"tokenizer.ggml.tokens: SentencePiece refuses this vocabulary: {error}"
            ) from error

    def _model_file(self, settings: NormalizerSettings) -> bytes:
        """Return a serialized `ModelProto`: pieces in id order, then settings of trainer and normalizer."""
        trainer = _varint_field(3, _MODEL_TYPE_BPE) + _varint_field(35, bool(find_bytes(self._vocabulary)))
        normalizer = _varint_field(3, settings.add_space_prefix) + _varint_field(
            4, settings.remove_extra_whitespaces
        )
        return b"".join([*self._pieces(), _bytes_field(2, trainer), _bytes_field(3, normalizer)])

    def _pieces(self) -> list[bytes]:
        """Return one message per token: field 1 is the spelling, field 2 the score, field 3 the type."""
        spellings, types = self._unique_spellings()
        texts = [_bytes_field(1, text.encode()) for text in spellings]
        scores = self._scores.astype("<f4").tobytes()
        return [
            b"\n%b%b\x15%b\x18%c" % (_varint(len(text) + 7), text, scores[i : i + 4], kind)
            for i, text, kind in zip(range(0, len(scores), 4), texts, types, strict=True)
        ]

    def _unique_spellings(self) -> tuple[list[str], list[int]]:
        """Return spellings and types as the library requires: all different, none empty, one unknown token.

        Tokens that text must not become, and all but the last of equal ones, get separate names. Converters
        spell user-defined tokens with spaces.
        """
        tokens = string_list(self._vocabulary.tokens, "tokens")
        types = self._vocabulary.types.tolist()
        for i in self._vocabulary.ids_of_type(TokenType.USER_DEFINED):
            tokens[i] = tokens[i].replace(" ", SPACE)
        last = {token: i for i, token in enumerate(tokens) if token}
        nameless = set(range(len(tokens))).difference(last.values())
        for i in nameless.union(self._vocabulary.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN)):
            tokens[i] = f"\uf8ff{i}"
            types[i] = TokenType.CONTROL
        types[find_unknown(self._vocabulary)] = TokenType.UNKNOWN
        return tokens, types


@cache
def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value
