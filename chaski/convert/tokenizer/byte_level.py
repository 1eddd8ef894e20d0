"""Byte-level BPE in `tokenizer.json` → `tokenizer.ggml.model` = `gpt2`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.convert.metadata import Metadata
from chaski.convert.tokenizer.files import TokenizerFiles
from chaski.convert.tokenizer.pretokenizer import recognise
from chaski.convert.tokenizer.tokens import TokenList, require_text
from chaski.errors import TokenizerError
from chaski.text.tokenizer.vocabulary import PREFIX

__all__ = ["byte_level_metadata", "read_merges"]


def byte_level_metadata(files: TokenizerFiles, tokens: TokenList, names: Mapping[str, str]) -> Metadata:
    """Return the tokens, the merges and the name of the pre-tokenizer.

    names: the family's own names for pre-tokenizers, by the usual names.
    """
    model = files.tokenizer.part("model")
    tokens.put_all(model.part("vocab").values)
    tokens.add(files.added_tokens().values())
    entries = tokens.metadata("gpt2", recognise(files.tokenizer, names))
    # A space would separate the two parts, so a space inside a part is written as byte-level BPE writes it.
    merges = [" ".join(part.replace(" ", "\u0120") for part in pair) for pair in read_merges(files)]
    return entries | {f"{PREFIX}merges": merges}


def read_merges(files: TokenizerFiles) -> list[tuple[str, str]]:
    """Return the merges in order. Files store them as `left right` or as pairs."""
    merges = files.tokenizer.part("model").list("merges")
    if not merges:
        raise TokenizerError(f"{files.tokenizer.path}: no merges")
    return [_pair(files, merge) for merge in merges]


def _pair(files: TokenizerFiles, merge: Any) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise TokenizerError(f"{files.tokenizer.path}: the merge {merge!r:.80} does not have two parts")
    for part in parts:
        require_text(files.tokenizer.path, "a part of a merge", part)
    return parts[0], parts[1]
