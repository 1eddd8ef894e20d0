"""SentencePiece's model file, a protocol buffer. Only the needed fields are read.

Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from chaski.errors import TokenizerError, UnsupportedError
from chaski.regular_files import read_regular
from chaski.text.tokenizer.vocabulary import TokenType

__all__ = ["BPE", "UNIGRAM", "Piece", "SentencePieceModel", "parse_model", "read_model"]

UNIGRAM, BPE = 1, 2  # as the trainer's settings number them


class Piece(Struct, frozen=True):
    text: str
    score: float
    type: TokenType


class SentencePieceModel(Struct, frozen=True):
    pieces: list[Piece]
    kind: int
    add_space_prefix: bool
    remove_spaces: bool
    charsmap: bytes


def read_model(path: Path) -> SentencePieceModel:
    try:
        model = parse_model(read_regular(path))
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise TokenizerError(f"{path}: not a SentencePiece model: {error}") from None
    if not model.pieces or model.kind not in (UNIGRAM, BPE):
        raise UnsupportedError(f"{path}: only SentencePiece models of kind BPE or unigram can be converted")
    return model


def parse_model(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(value))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer = dict(_fields(value))
    return SentencePieceModel(
        pieces,
        kind=trainer.get(3, 1),
        add_space_prefix=bool(normalizer.get(3, 1)),
        remove_spaces=bool(normalizer.get(4, 1)),
        charsmap=normalizer.get(2, b""),
    )


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    text = fields.get(1, b"").decode()
    return Piece(text, struct.unpack("<f", fields.get(2, bytes(4)))[0], TokenType(fields.get(3, 1)))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the field numbers and values of a message. Values are ints, or bytes for other types."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        if tag & 7 == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if tag & 7 == 2:
            length, position = _varint(data, position)
        else:
            length = {1: 8, 5: 4}.get(tag & 7, -1)
        if length < 0 or position + length > len(data):
            raise ValueError(f"a field of {length} bytes at byte {position}")
        yield tag >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the value of a varint (seven bits per byte, the lowest first) and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
        if shift > 63:
            raise ValueError(f"a number of more than ten bytes at byte {position}")
