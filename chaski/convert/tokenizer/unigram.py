"""SentencePiece unigram vocabularies, such as XLM-RoBERTa's and T5's → `tokenizer.ggml.model` = `t5`."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from chaski.convert.metadata import Metadata
from chaski.convert.tokenizer.files import FAIRSEQ_MODEL, TokenizerFiles
from chaski.convert.tokenizer.sentencepiece_model import Piece, SentencePieceModel
from chaski.convert.tokenizer.tokens import BYTE, TokenList
from chaski.errors import TokenizerError, UnsupportedError
from chaski.text.tokenizer.vocabulary import PREFIX, TokenType

__all__ = ["unigram_metadata", "unigram_model_metadata"]

# Fairseq puts its own tokens before the pieces, instead of the model's first three.
_FAIRSEQ = [("<s>", 3), ("<pad>", 3), ("</s>", 3), ("<unk>", 2)]
_REPLACED = 3


def unigram_metadata(files: TokenizerFiles, tokens: TokenList) -> Metadata:
    """Return the tokens, scores and normalizer of a `tokenizer.json`."""
    model = files.tokenizer.part("model")
    unknown = model.get("unk_id", int)
    has_bytes = model.get("byte_fallback", bool, False)
    for token_id, (token, score) in enumerate(model.list("vocab")):
        is_byte = has_bytes and BYTE.fullmatch(token)
        type = TokenType.BYTE if is_byte else TokenType.NORMAL
        tokens.put(token_id, token, TokenType.UNKNOWN if token_id == unknown else type, float(score))
    scores = list(tokens.scores)
    added = files.added_tokens().values()
    tokens.add(token for token in added if token.id != unknown)
    for token in added:  # tokens of the vocabulary keep their scores
        if tokens.types[token.id] is TokenType.CONTROL:
            tokens.scores[token.id] = scores[token.id]
    return _entries(files, tokens, **_normalizer(files))


def unigram_model_metadata(files: TokenizerFiles, model: SentencePieceModel, tokens: TokenList) -> Metadata:
    """The same from SentencePiece's model file, if there is no `tokenizer.json`."""
    pieces = model.pieces
    if files.sentencepiece.name == FAIRSEQ_MODEL:
        first = [Piece(text, 0.0, TokenType(type)) for text, type in _FAIRSEQ]
        pieces = [*first, *pieces[_REPLACED:], Piece("<mask>", 0.0, TokenType.CONTROL)]
    for token_id, piece in enumerate(pieces):
        tokens.put(token_id, piece.text, piece.type, piece.score)
    tokens.add(files.added_tokens().values())
    return _entries(
        files, tokens, prefix=model.add_space_prefix, remove=model.remove_spaces, charsmap=model.charsmap
    )


def _entries(
    files: TokenizerFiles, tokens: TokenList, *, prefix: bool, remove: bool, charsmap: bytes
) -> Metadata:
    entries = tokens.metadata("t5", "default", scores=True)
    entries[f"{PREFIX}add_space_prefix"] = prefix
    entries[f"{PREFIX}remove_extra_whitespaces"] = remove
    if "type_vocab_size" in files.model:
        entries[f"{PREFIX}token_type_count"] = files.model.get("type_vocab_size", int)
    if charsmap:
        entries[f"{PREFIX}precompiled_charsmap"] = np.frombuffer(charsmap, np.uint8)
    return entries


def _normalizer(files: TokenizerFiles) -> dict[str, Any]:
    """The arguments of `_entries` that follow from the normalizer and the pre-tokenizer."""
    tokenizer = files.tokenizer
    found: dict[str, Any] = {"prefix": False, "remove": False, "charsmap": b""}
    steps = [*_steps(tokenizer.part("normalizer").values), *_steps(tokenizer.part("pre_tokenizer").values)]
    for step in steps:
        kind = step.get("type")
        if kind == "Precompiled":
            found["charsmap"] = _decoded(files, step.get("precompiled_charsmap"))
        elif kind == "Metaspace":
            scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            found["prefix"] = scheme != "never"
        elif kind == "WhitespaceSplit" or (kind == "Replace" and _joins_spaces(step)):
            found["remove"] = True
        elif kind != "Strip":
            raise UnsupportedError(
                f"{tokenizer.path}: the step {step!r:.200} of a unigram tokenizer cannot be converted"
            )
    return found


def _steps(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if step.get("type") == "Sequence":
        for part in [*(step.get("normalizers") or []), *(step.get("pretokenizers") or [])]:
            yield from _steps(part)
    elif step:
        yield step


def _joins_spaces(step: Mapping[str, Any]) -> bool:
    return step.get("pattern") == {"Regex": " {2,}"} and step.get("content") in (" ", "\u2581")


def _decoded(files: TokenizerFiles, value: Any) -> bytes:
    try:
        return base64.b64decode(value or "", validate=True)
    except (ValueError, TypeError) as error:
        raise TokenizerError(
            f"{files.tokenizer.path}: 'precompiled_charsmap' is not base64: {error}"
        ) from None
