"""The committed vocabularies as GGUF metadata, and expected ids; see tools/fixtures."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from chaski.text.tokenizer import Tokenizer, load_tokenizer
from chaski.text.tokenizer.pretokenizers import PRETOKENIZERS

FOLDER = Path(__file__).parents[1] / "data" / "tokenizer"
FAMILIES = (
    "gpt-2",
    "refact",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "tekken",
    "gpt-4o",
    "deepseek-v3",
    "deepseek-coder",
)
KEY = "tokenizer.ggml."
SENTENCEPIECE = ("sentencepiece_prefix", "sentencepiece_plain")


@cache
def fixture(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def expected_ids(name: str) -> list[list[int]]:
    return ids_of("ids", name)


@cache
def ids_of(file: str, name: str) -> list[list[int]]:
    """Return one list for each string, from one array of a file."""
    with np.load(FOLDER / f"{file}.npz") as arrays:
        ids = arrays[name].astype(int)
    ends = np.flatnonzero(ids == 65535)
    return [part.tolist()[1:] for part in np.split(np.insert(ids, 0, 65535), ends + 1)[:-1]]


def byte_level_metadata(pre: str = "gpt-2", **extra: object) -> dict[str, Any]:
    vocabulary = fixture("byte_level")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(vocabulary["tokens"]),
        "tokenizer.ggml.merges": list(vocabulary["merges"]),
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }


def text_metadata(pre: str) -> dict[str, Any]:
    """Return a vocabulary of text instead of bytes."""
    vocabulary = fixture("text_bpe")
    return byte_level_metadata(pre) | {
        "tokenizer.ggml.tokens": list(vocabulary["tokens"]),
        "tokenizer.ggml.token_type": list(vocabulary["types"]),
        "tokenizer.ggml.merges": list(vocabulary["merges"]),
    }


def special_metadata(**extra: object) -> dict[str, Any]:
    """Return the byte-level vocabulary, followed by the special tokens of special.json."""
    cases = fixture("special")
    metadata = byte_level_metadata("llama-bpe", **extra)
    normal = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] += cases["special"] + cases["user_defined"]
    types = [1] * normal + [3] * len(cases["special"]) + [4] * len(cases["user_defined"])
    metadata["tokenizer.ggml.token_type"] = np.array(types, np.int32)
    return metadata


def sentencepiece_metadata(name: str = "sentencepiece_prefix", **extra: object) -> dict[str, Any]:
    values = {**copy.deepcopy(fixture(name)), **extra}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        **{f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None},
    }


def unigram_metadata(**extra: object) -> dict[str, Any]:
    """Return a vocabulary and a character table like XLM-RoBERTa's."""
    with np.load(FOLDER / "unigram.npz") as arrays:
        charsmap = arrays["charsmap"]
    values = {"precompiled_charsmap": charsmap, **copy.deepcopy(fixture("unigram")), **extra}
    entries = {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
    return {"tokenizer.ggml.model": "t5", **entries}


def pieces_metadata(kind: str, **extra: object) -> dict[str, Any]:
    """Return the vocabulary of text for `rwkv` or `plamo2`, with scores that prefer no length."""
    vocabulary = fixture("text_bpe")
    texts = [token.replace("\u2581", " ") for token in vocabulary["tokens"][256:]]
    values: dict[str, object]
    if kind == "rwkv":
        spelled = [repr(bytes([byte]))[2:-1] for byte in range(256)]
        spelled += [repr(text.encode())[2:-1] for text in texts if len(text.encode()) > 1]
        tokens, types = ["<s>", *spelled, "[PAD9]"], [3, *[1] * len(spelled), 5]
        values = {"bos_token_id": 0, "eos_token_id": 0}
    else:
        controls = [f"<|plamo:{name}|>" for name in ("unk", "bos", "eos", "pad", "op")]
        tokens = [*controls, *vocabulary["tokens"][:256], *texts]
        types = [2, 3, 3, 3, 3, *[6] * 256, *[1] * len(texts)]
        # Whole units, so that many spellings have equal sums.
        values = {"scores": [0.0] * 261 + [-1.0 - index * 7 % 13 for index in range(len(texts))]}
    return {
        KEY + "model": kind,
        KEY + "tokens": tokens,
        KEY + "token_type": types,
        **{KEY + name: value for name, value in {**values, **extra}.items()},
    }


@cache
def tokenizer(name: str) -> Tokenizer:
    if name in SENTENCEPIECE:
        return load_tokenizer(sentencepiece_metadata(name))
    return load_tokenizer((byte_level_metadata if PRETOKENIZERS[name].byte_level else text_metadata)(name))
