"""tokenizer.json and its settings as the converter reads them, and vocabularies of GGUF files."""

from __future__ import annotations

import json
from pathlib import Path

from chaski.convert.config import Config
from chaski.convert.tokenizer import tokenizer_metadata
from chaski.convert.tokenizer.sentencepiece_model import read_model
from chaski.formats.gguf import open_gguf
from chaski.text.tokenizer import Tokenizer, load_tokenizer
from fuzz.gguf_form import mutate_gguf
from fuzz.mutations import mutate_bytes, mutate_json
from fuzz.scratch import folder, written
from fuzz.target import Target

__all__ = ["TARGETS"]

_TEXTS = ("", "Hello, world", "  the\tllama\n\n0 1 12 123", "é😀 \u0301ﬁ\u200d中文", "<s></s><unk>▁a", "\0")


def tokenizer_json(data: bytes) -> None:
    """A pair of files converts to a vocabulary that loads and encodes texts, or is refused.

    An input is an object with `tokenizer`, `config` and `size`.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(found, dict):
        return
    for name, key in (("tokenizer.json", "tokenizer"), ("tokenizer_config.json", "config")):
        written(json.dumps(found.get(key)).encode(), name)
    config = Config(Path("config.json"), {"vocab_size": found.get("size")})
    _use(load_tokenizer(tokenizer_metadata(folder(), config, {})))


def sentencepiece(data: bytes) -> None:
    """A model file is parsed or refused."""
    read_model(written(data, "tokenizer.model"))


def vocabulary(data: bytes) -> None:
    """The vocabulary of a GGUF file loads and encodes texts the same way twice, or is refused."""
    with open_gguf(written(data, "vocabulary.gguf")) as file:
        _use(load_tokenizer(file.metadata))


def _use(tokenizer: Tokenizer) -> None:
    for text in _TEXTS:
        ids = tokenizer.encode(text)
        assert all(0 <= token < tokenizer.size for token in ids), "a token outside of the vocabulary"
        assert tokenizer.encode(text) == ids
        tokenizer.decode(ids)


TARGETS = (
    Target("tokenizer-json", tokenizer_json, mutate_json),
    Target("sentencepiece", sentencepiece, mutate_bytes),
    Target("vocabulary", vocabulary, mutate_gguf),
)
