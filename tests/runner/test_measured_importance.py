"""Making importance matrices: chunks, the first token of each, and interruptions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chaski.errors import OptionError
from chaski.formats.importance import ImportanceMatrix, read_importance
from chaski.runner.importance import Text, make_importance
from chaski.runner.loading.files import OpenedModel
from chaski.store.model import find_model
from tests.tiny_llama import write_tiny_llama

TEXT = "the load of the llama carries mountains of wool over and over " * 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    return OpenedModel.of(find_model(str(write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))))


@pytest.fixture
def text(tmp_path: Path) -> Text:
    (tmp_path / "text.txt").write_text(TEXT)
    return Text(tmp_path / "text.txt", chunk_size=20)


class Interrupted(Exception):  # noqa: N818 -- what it is
    """The work is stopped."""


def made(
    model: OpenedModel, text: Text, out: Path, stop_after: int | None = None
) -> tuple[ImportanceMatrix, list[int]]:
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if done == stop_after:
            raise Interrupted

    return make_importance(model, text, out, "cpu", progress), seen


def same(a: ImportanceMatrix, b: ImportanceMatrix) -> bool:
    return a.entries.keys() == b.entries.keys() and all(
        np.array_equal(entry.sums, b.entries[name].sums)
        and np.array_equal(entry.counts, b.entries[name].counts)
        for name, entry in a.entries.items()
    )


def test_a_text_is_measured_in_chunks(model: OpenedModel, text: Text, tmp_path: Path) -> None:
    matrix, seen = made(model, text, tmp_path / "out.gguf")
    assert matrix.chunk_count == seen[-1] > 8
    assert seen == list(range(matrix.chunk_count + 1))
    assert matrix.entries["blk.0.attn_q.weight"].counts.tolist() == [20 * matrix.chunk_count]
    read = read_importance(tmp_path / "out.gguf")
    assert same(read, matrix)
    assert (read.datasets, read.chunk_size) == (["text.txt"], 20)
    few, _ = made(model, Text(text.path, 20, chunks=2), tmp_path / "few.gguf")
    assert few.chunk_count == 2


def test_chunks_do_not_see_each_other(model: OpenedModel, text: Text, tmp_path: Path) -> None:
    """The sums of two equal chunks are twice those of one."""
    text.path.write_text("q" * 50)
    one, _ = made(model, Text(text.path, 10, chunks=1), tmp_path / "one.gguf")
    two, _ = made(model, Text(text.path, 10, chunks=2), tmp_path / "two.gguf")
    for name, entry in one.entries.items():
        np.testing.assert_allclose(two.entries[name].sums, 2 * entry.sums, rtol=1e-6)


def test_an_interrupted_measurement_continues(model: OpenedModel, text: Text, tmp_path: Path) -> None:
    whole, _ = made(model, text, tmp_path / "whole.gguf")
    out = tmp_path / "out.gguf"
    with pytest.raises(Interrupted):
        made(model, text, out, stop_after=9)
    assert not out.exists()
    matrix, seen = made(model, text, out)
    assert seen[0] == 8
    assert same(matrix, whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "text.txt", "whole.gguf"]


def test_another_text_starts_again(model: OpenedModel, text: Text, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        made(model, text, tmp_path / "out.gguf", stop_after=9)
    text.path.write_text("another " + TEXT)
    _, seen = made(model, text, tmp_path / "out.gguf")
    assert seen[0] == 0


def test_a_short_text_is_one_chunk(model: OpenedModel, text: Text, tmp_path: Path) -> None:
    text.path.write_text("the llama")
    matrix, _ = made(model, text, tmp_path / "out.gguf")
    assert matrix.chunk_count == 1
    text.path.write_text("")
    with pytest.raises(OptionError, match=r"text.txt has 0 tokens; give a text of some thousands"):
        made(model, text, tmp_path / "out.gguf")
    with pytest.raises(OptionError, match=r"none.txt: No such file"):
        made(model, Text(tmp_path / "none.txt"), tmp_path / "out.gguf")
