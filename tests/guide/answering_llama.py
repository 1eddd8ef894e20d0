"""A tiny model whose file contains answers: random weights, and an encoder that knows its questions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.guide.answers import ANSWERS, spread
from tests.rewriting import all_tensors
from tests.tiny_llama import write_tiny_llama

__all__ = ["ANSWER_OF", "write_answering_llama"]

ANSWER_OF = {
    "How do I list models?": ("`chaski list` lists them.", "docs/store.md", False),
    "Where are models kept?": ("In the folder of the store.", "docs/store.md", False),
    "remove a model": ("`chaski rm NAME` removes it.", "docs/cli.md", True),
}
"""Questions, each with the answer, its page, and whether it needs a higher probability."""


def write_answering_llama(folder: Path, **changed: object) -> Path:
    """Write the model. `changed`: entries of the inner file with other values, or None to omit them."""
    encoder = write_tiny_llama(folder / "encoder.gguf", llama__pooling_type=1)
    with chaski.load(encoder, threads=1) as model:
        vectors = np.asarray(model.embed([spread(question) for question in ANSWER_OF]))
    texts, pages, is_careful = zip(*ANSWER_OF.values(), strict=True)
    entries: dict[str, object] = {
        "answers.texts": list(texts),
        "answers.pages": list(pages),
        "answers.is_careful": np.array(is_careful),
        "answers.rows": np.rint(127 * vectors).astype(np.int8).ravel(),
        "answers.scales": np.full(len(texts), 40 / 127, np.float32),
        "answers.biases": np.zeros(len(texts), np.float32),
        "answers.sure": 0.5,
        "answers.careful": 0.75,
        "answers.likely": 0.4,
        "answers.both": "{first} Or: {second}",
        "answers.doubt": "Not sure; see {page}.",
    }
    entries |= {f"answers.{name}": value for name, value in changed.items()}
    inner, outer, path = folder / "inner.gguf", folder / "outer.gguf", folder / "answering.gguf"
    with open_gguf(encoder) as file:
        found = {key: value for key, value in (dict(file.metadata) | entries).items() if value is not None}
        write_gguf(inner, found, all_tensors(file))
    with open_gguf(write_tiny_llama(outer)) as file:
        write_gguf(path, {**file.metadata, ANSWERS: np.fromfile(inner, np.uint8)}, all_tensors(file))
    return path
