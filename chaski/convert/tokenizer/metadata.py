"""Metadata for a checkpoint's tokenizer, depending on its kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chaski.convert.config import Config
from chaski.convert.metadata import Metadata
from chaski.convert.tokenizer.byte_level import byte_level_metadata
from chaski.convert.tokenizer.files import TokenizerFiles, read_files
from chaski.convert.tokenizer.sentencepiece import merges_metadata, sentencepiece_metadata
from chaski.convert.tokenizer.special import special_metadata
from chaski.convert.tokenizer.tokens import TokenList
from chaski.convert.tokenizer.unigram import unigram_metadata
from chaski.convert.tokenizer.wordpiece import wordpiece_metadata
from chaski.errors import TokenizerError, UnsupportedError
from chaski.text.tokenizer.vocabulary import PREFIX

__all__ = ["tokenizer_metadata"]

_LONGEST_REASON = 200  # characters


def tokenizer_metadata(
    folder: Path,
    config: Config,
    pre_tokenizers: Mapping[str, str],
    num_extra: int = 0,
    has_merges: bool = False,
) -> Metadata:
    """Return the `tokenizer.*` keys for the tokenizer in `folder`.

    config: the model's configuration.
    pre_tokenizers: the family's own names for pre-tokenizers, by the usual names.
    num_extra: the number of tokens after the vocabulary.
    has_merges: the family's readers need the merges of a SentencePiece vocabulary.
    Raises TokenizerError for files that are malformed or do not fit the model, and UnsupportedError for kinds
    that GGUF cannot express.
    """
    files = read_files(folder, config)
    if not files.tokenizer.values and not files.sentencepiece.exists():
        raise TokenizerError(
            f"{folder}: no tokenizer: it has neither tokenizer.json nor a model of SentencePiece"
        )
    tokens = TokenList(files.tokenizer.path, config.get("vocab_size", int) + num_extra)
    try:
        entries = merges_metadata(files, tokens) if has_merges else _vocabulary(files, tokens, pre_tokenizers)
        if "type_vocab_size" in config:  # models that may compare two texts
            entries[f"{PREFIX}token_type_count"] = config.get("type_vocab_size", int)
        return entries | special_metadata(files, tokens.ids())
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # The files are untrusted JSON, in which a value may have any type.
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        raise TokenizerError(
            f"{files.tokenizer.path}: this file or one next to it has an invalid value ({reason})"
        ) from error


def _vocabulary(files: TokenizerFiles, tokens: TokenList, pre_tokenizers: Mapping[str, str]) -> Metadata:
    model = files.tokenizer.part("model")
    kind = model.get("type", str, None)
    if kind == "WordPiece":
        return wordpiece_metadata(files, tokens)
    if kind == "Unigram":
        return unigram_metadata(files, tokens)
    if not files.tokenizer.values or (kind == "BPE" and model.get("byte_fallback", bool, False)):
        return sentencepiece_metadata(files, tokens)
    if kind == "BPE":
        return byte_level_metadata(files, tokens, pre_tokenizers)
    raise UnsupportedError(f"{files.tokenizer.path}: tokenizers of kind {kind!r} cannot be converted")
