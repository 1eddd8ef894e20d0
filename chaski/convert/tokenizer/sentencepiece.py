"""SentencePiece vocabularies → `tokenizer.ggml.model` = `llama` (BPE), `t5` (unigram) or `gemma4` (merges).

They come as `tokenizer.model`, a protocol buffer, of which the few fields that matter are read here, or
as a `tokenizer.json` that was made from one.
Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from chaski.convert.metadata import Metadata
from chaski.convert.tokenizer.byte_level import read_merges
from chaski.convert.tokenizer.files import TokenizerFiles
from chaski.convert.tokenizer.tokens import TokenList
from chaski.errors import TokenizerError, UnsupportedError
from chaski.text.tokenizer.vocabulary import PREFIX, TokenType

__all__ = ["merges_metadata", "sentencepiece_metadata"]

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# Tokens around thoughts, calls and results: their text is part of an answer, and a parser reads it.
_VISIBLE = frozenset({"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'}) | frozenset(
    {"<|tool_response>", "<tool_response|>"}
)
_NO_SCORE = -1000.0
_MODELS = {1: "t5", 2: "llama"}  # unigram and BPE, as the trainer's settings number them


def sentencepiece_metadata(files: TokenizerFiles, tokens: TokenList) -> Metadata:
    """Tokens, types and scores, from `tokenizer.model` where there is one, because it has the scores."""
    read = _from_model if files.sentencepiece.exists() else _from_json
    entries = read(files, tokens)
    tokens.add(files.added_tokens().values())
    return tokens.metadata(_MODELS[2], "default", scores=True) | entries


def merges_metadata(files: TokenizerFiles, tokens: TokenList) -> Metadata:
    """Tokens and the merges themselves instead of scores, as Gemma 4 has them. Scores mean nothing then."""
    if not files.tokenizer.values:
        raise UnsupportedError(
            f"{files.tokenizer.path}: Gemma 4 needs a tokenizer.json, which has the merges"
        )
    entries = _from_json(files, tokens)
    tokens.add(files.added_tokens().values())
    for token, token_id in tokens.ids().items():
        type = TokenType.USER_DEFINED if token in _VISIBLE else tokens.types[token_id]
        tokens.put(token_id, token, type, _NO_SCORE)
    merges = [" ".join(part.replace(" ", "\u0120") for part in pair) for pair in read_merges(files)]
    return tokens.metadata("gemma4", "gemma4", scores=True) | entries | {f"{PREFIX}merges": merges}


def _from_json(files: TokenizerFiles, tokens: TokenList) -> Metadata:
    """BPE with bytes for what has no token. The order of merges is that of the scores it was made from."""
    model = files.tokenizer.part("model")
    ids = model.part("vocab").values
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(read_merges(files)):
        ranks.setdefault(left + right, rank)
    unknown = model.get("unk_token", str, None)
    for token, token_id in ids.items():
        type = TokenType.BYTE if _BYTE.fullmatch(token) else TokenType.NORMAL
        type = TokenType.UNKNOWN if token == unknown else type
        tokens.put(token_id, token, type, -float(ranks.get(token, len(ranks))))
    return {f"{PREFIX}add_space_prefix": _prefixes_space(files)}


def _prefixes_space(files: TokenizerFiles) -> bool:
    """Return whether text gets a space in front, by its normalizer or by its pre-tokenizer."""
    normalizer, splitter = files.tokenizer.part("normalizer"), files.tokenizer.part("pre_tokenizer")
    steps = normalizer.list("normalizers") or [normalizer.values]
    kinds = [step.get("type") for step in steps if step]
    scheme = splitter.get("prepend_scheme", str, "never")
    known_splitter = splitter.values.get("type") in (None, "Metaspace", "Split")
    if (
        not known_splitter
        or not {"Prepend", "Replace"}.issuperset(kinds)
        or scheme not in ("never", "first", "always")
    ):
        raise UnsupportedError(f"{files.tokenizer.path}: the normalizer {kinds} cannot be converted")
    return "Prepend" in kinds or scheme != "never"


def _from_model(files: TokenizerFiles, tokens: TokenList) -> Metadata:
    model = _read_model(files)
    for token_id, piece in enumerate(model.pieces):
        tokens.put(token_id, piece.text, piece.type, piece.score)
    entries: Metadata = {f"{PREFIX}add_space_prefix": model.add_space_prefix}
    if model.kind == 1:
        entries |= {f"{PREFIX}model": _MODELS[1], f"{PREFIX}remove_extra_whitespaces": model.remove_spaces}
        if model.charsmap:
            entries[f"{PREFIX}precompiled_charsmap"] = np.frombuffer(model.charsmap, np.uint8)
    return entries


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    score: float
    type: TokenType


@dataclass(frozen=True, slots=True)
class _Model:
    pieces: list[_Piece]
    kind: int
    add_space_prefix: bool
    remove_spaces: bool
    charsmap: bytes


def _read_model(files: TokenizerFiles) -> _Model:
    path = files.sentencepiece
    try:
        model = _model(path.read_bytes())
    except (ValueError, IndexError, struct.error) as error:
        raise TokenizerError(f"{path}: not a SentencePiece model: {error}") from None
    if not model.pieces or model.kind not in _MODELS:
        raise UnsupportedError(f"{path}: only SentencePiece models of kind BPE or unigram can be converted")
    return model


def _model(data: bytes) -> _Model:
    pieces: list[_Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(value))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer = dict(_fields(value))
    return _Model(
        pieces,
        kind=trainer.get(3, 1),
        add_space_prefix=bool(normalizer.get(3, 1)),
        remove_spaces=bool(normalizer.get(4, 1)),
        charsmap=normalizer.get(2, b""),
    )


def _piece(data: bytes) -> _Piece:
    fields = dict(_fields(data))
    text = fields.get(1, b"").decode()
    return _Piece(text, struct.unpack("<f", fields.get(2, bytes(4)))[0], TokenType(fields.get(3, 1)))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message: ints, or bytes for everything that is longer."""
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
    """Seven bits a byte, the lowest first -> value, where it ends."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
        if shift > 63:
            raise ValueError(f"a number of more than ten bytes at byte {position}")
