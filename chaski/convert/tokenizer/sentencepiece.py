"""SentencePiece BPE vocabularies → `tokenizer.ggml.model` = `llama`, or `gemma4` with merges.

The source is a `tokenizer.model`, or a `tokenizer.json` that was derived from one.
"""

from __future__ import annotations

from chaski.convert.metadata import Metadata
from chaski.convert.tokenizer.byte_level import read_merges
from chaski.convert.tokenizer.files import TokenizerFiles
from chaski.convert.tokenizer.sentencepiece_model import UNIGRAM, SentencePieceModel, read_model
from chaski.convert.tokenizer.tokens import BYTE, TokenList
from chaski.convert.tokenizer.unigram import unigram_model_metadata
from chaski.errors import UnsupportedError
from chaski.text.tokenizer.vocabulary import PREFIX, TokenType

__all__ = ["merges_metadata", "sentencepiece_metadata"]

# Tokens around thoughts, tool calls and results. Their text stays in the answer because a parser reads it.
_VISIBLE = frozenset({"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'}) | frozenset(
    {"<|tool_response>", "<tool_response|>"}
)
_NO_SCORE = -1000.0


def sentencepiece_metadata(files: TokenizerFiles, tokens: TokenList) -> Metadata:
    """Return tokens, types and scores. `tokenizer.model` is preferred because it contains the scores."""
    model = read_model(files.sentencepiece) if files.sentencepiece.exists() else None
    if model is not None and model.kind == UNIGRAM:
        return unigram_model_metadata(files, model, tokens)
    entries = _from_json(files, tokens) if model is None else _from_model(model, tokens)
    tokens.add(files.added_tokens().values())
    return tokens.metadata("llama", "default", scores=True) | entries


def merges_metadata(files: TokenizerFiles, tokens: TokenList) -> Metadata:
    """Return tokens and merges, as in Gemma 4. The merges replace the scores, which have no meaning."""
    if not files.tokenizer.values:
        raise UnsupportedError(
            f"{files.tokenizer.path}: Gemma 4 needs a tokenizer.json, which contains the merges"
        )
    entries = _from_json(files, tokens)
    tokens.add(files.added_tokens().values())
    for token, token_id in tokens.ids().items():
        type = TokenType.USER_DEFINED if token in _VISIBLE else tokens.types[token_id]
        tokens.put(token_id, token, type, _NO_SCORE)
    merges = [" ".join(part.replace(" ", "\u0120") for part in pair) for pair in read_merges(files)]
    return tokens.metadata("gemma4", "gemma4", scores=True) | entries | {f"{PREFIX}merges": merges}


def _from_json(files: TokenizerFiles, tokens: TokenList) -> Metadata:
    """Read BPE with byte fallback. The scores follow the order of the merges."""
    model = files.tokenizer.part("model")
    ids = model.part("vocab").values
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(read_merges(files)):
        ranks.setdefault(left + right, rank)
    unknown = model.get("unk_token", str, None)
    for token, token_id in ids.items():
        type = TokenType.BYTE if BYTE.fullmatch(token) else TokenType.NORMAL
        type = TokenType.UNKNOWN if token == unknown else type
        tokens.put(token_id, token, type, -float(ranks.get(token, len(ranks))))
    return {f"{PREFIX}add_space_prefix": _prefixes_space(files)}


def _prefixes_space(files: TokenizerFiles) -> bool:
    """Return whether the normalizer or the pre-tokenizer puts a space before the text."""
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


def _from_model(model: SentencePieceModel, tokens: TokenList) -> Metadata:
    for token_id, piece in enumerate(model.pieces):
        tokens.put(token_id, piece.text, piece.type, piece.score)
    return {f"{PREFIX}add_space_prefix": model.add_space_prefix}
