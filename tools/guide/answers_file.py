"""The guide's file with its answers: a GGUF file inside another one (chaski/guide/answers.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.formats.gguf import TensorInfo, open_gguf, open_inside
from chaski.formats.gguf_writer import LazyTensor, Source, write_gguf
from chaski.guide.answers import ANSWERS
from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tools.guide.topics import BOTH, DOUBT, Topic

__all__ = ["Choice", "describe", "put_answers", "put_texts"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The n topics with the other data of `AnswerTexts`; rows (n, hidden size) and biases (n,)."""

    topics: Sequence[Topic]
    rows: NDArray[np.float32]
    biases: NDArray[np.float32]
    sure: float
    careful: float
    likely: float

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the metadata for the file with the encoder."""
        scales = np.abs(self.rows).max(axis=1) / 127
        return {
            **_told(self.topics),
            "answers.rows": np.rint(self.rows / scales[:, None]).astype(np.int8).ravel(),
            "answers.scales": scales.astype(np.float32),
            "answers.biases": self.biases.astype(np.float32),
            **{f"answers.{name}": getattr(self, name) for name in ("sure", "careful", "likely")},
        }


def put_answers(
    guide: Path, out: Path, encoder: Mapping[str, Any], tensors: Mapping[str, Source], choice: Choice
) -> None:
    """Write the guide's file with these answers and this encoder instead of its present ones."""
    _put(guide, out, {**encoder, **choice.metadata}, tensors)


def put_texts(guide: Path, out: Path, topics: Sequence[Topic]) -> None:
    """Write the guide's file with the present answers of these topics; keep its encoder."""
    with open_inside(guide, ANSWERS) as file:
        if len(topics) != len(file.get("answers.texts", list[str])):
            raise SystemExit(f"{guide} was trained for other topics: train the encoder anew")
        tensors: dict[str, Source] = {name: _as_it_is(info) for name, info in file.tensors.items()}
        _put(guide, out, {**file.metadata, **_told(topics)}, tensors)


def _put(guide: Path, out: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Source]) -> None:
    with TemporaryDirectory() as folder:
        encoder = Path(folder) / "answers.gguf"
        write_gguf(encoder, metadata, tensors)
        content = np.fromfile(encoder, np.uint8)
    with open_gguf(guide) as file:
        own = {key: value for key, value in file.metadata.items() if key != ANSWERS}
        write_gguf(
            out,
            {**own, ANSWERS: content},
            {name: _as_it_is(info) for name, info in file.tensors.items()},
        )


def _told(topics: Sequence[Topic]) -> dict[str, Any]:
    """Return the metadata of the topics."""
    return {
        "answers.texts": [topic.answer for topic in topics],
        "answers.pages": [topic.page for topic in topics],
        "answers.is_careful": np.array([topic.removes for topic in topics]),
        "answers.both": BOTH,
        "answers.doubt": DOUBT,
    }


def describe(guide: Path) -> None:
    """Write the model's store entry next to it: its description, and greedy sampling."""
    with TemporaryDirectory() as folder:
        store, name = Store(Path(folder)), ModelName.parse("described")
        for _ in create(store, name, Recipe(sources=[guide], parameters={"temperature": 0})):
            pass
        manifest = store.entry(name).manifest
        guide.with_suffix(".json").write_bytes(store.blobs.read(manifest.config.digest))
        (options,) = manifest.of_kind("params")
        guide.with_suffix(".params").write_bytes(store.blobs.read(options.digest))


def _as_it_is(info: TensorInfo) -> LazyTensor:
    return LazyTensor(info.shape, info.type, lambda: [info.data])
