"""The largest elements of rows: their values and indices, on every backend, in every batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, Weight
from tests.backends import FORMS, USUAL

F32 = npt.NDArray[np.float32]

PLACES = [("reference", "auto", 1), *((name, isa, 2) for name, isa in FORMS), (USUAL, "auto", 1)]
MOST = 70


class Chooser:
    """A plan that chooses from the rows of a table."""

    def __init__(self, folder: Path, place: tuple[str, str, int], table: F32) -> None:
        name, isa, threads = place
        self.backend = open_backend(name, CPUOptions(threads=threads, isa=isa))
        write_table(folder / "t.gguf", table)
        weight = Weight(table.shape, name="table")
        graph = Graph()
        rows = Dim("rows", 40)
        with open_gguf(folder / "t.gguf") as file:
            self.backend.place([(weight, file.tensors["table"])])
            ids, counts = (graph.input(name, (rows,), DType.I32) for name in ("ids", "counts"))
            graph.output("y", ops.top_k(ops.embedding(ids, weight), counts, MOST).reshape(2 * MOST))
            self.plan = self.backend.compile(graph)
            self.backend.load(lambda _: None)

    def run(self, ids: list[int], counts: list[int]) -> list[list[tuple[float, int]]]:
        launch = self.plan.launch({"ids": np.array(ids), "counts": np.array(counts)})
        found = launch.rows("y").reshape(-1, 2, MOST)
        pairs = [zip(*row[:, :count].tolist(), strict=True) for row, count in zip(found, counts, strict=True)]
        return [[(value, int(index)) for value, index in row] for row in pairs]


def write_table(path: Path, table: F32) -> None:
    """Write the table; the writer refuses values that are not finite, so zeros are overwritten."""
    tensors = {"table": (np.zeros_like(table), QuantType.F32)}
    write_gguf(path, {"general.architecture": "test"}, tensors)
    with open_gguf(path) as opened:
        offset = opened.tensors["table"].offset
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(table.tobytes())


def expected(row: F32, count: int) -> list[tuple[float, int]]:
    best = sorted(range(row.size), key=lambda index: (-row[index], index))[:count]
    return [(float(row[index]), index) for index in best]


def rows_of(width: int) -> F32:
    """Return rows of many, few, or one distinct numbers, and of mostly minus infinity."""
    random = np.random.default_rng(width)
    table = random.standard_normal((6, width)).astype(np.float32)
    table[1] = np.round(table[1])
    table[2] = random.choice([0.0, -0.0, -1.0], width)
    table[3] = 1.5
    table[4, random.permutation(width)[3:]] = -np.inf
    table[5] = np.sort(table[5])
    return table


@pytest.mark.parametrize(
    "width", [1, 7, 16, 64, 65, 1000, 5003, pytest.param(50_000, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_they_are_the_first_of_a_stable_sort(tmp_path: Path, place: tuple[str, str, int], width: int) -> None:
    table = rows_of(width)
    chooser = Chooser(tmp_path, place, table)
    for count in (1, 2, 40, MOST):
        count = min(count, width)
        found = chooser.run(list(range(6)), [count] * 6)
        assert found == [expected(row, count) for row in table]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_each_row_has_its_own_count(tmp_path: Path, place: tuple[str, str, int]) -> None:
    table = rows_of(3000)
    ids, counts = [0, 1, 0, 5, 4, 0], [0, 5, 1, 70, 0, 40]
    found = Chooser(tmp_path, place, table).run(ids, counts)
    assert found == [expected(table[i], count) for i, count in zip(ids, counts, strict=True)]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("at", [[0], [2999], [15, 16, 17], [100, 1700]])
def test_the_first_nan_comes_first(tmp_path: Path, place: tuple[str, str, int], at: list[int]) -> None:
    table = rows_of(3000)
    table[:, at] = np.nan
    table[0, 5] = np.inf
    for row in Chooser(tmp_path, place, table).run(list(range(6)), [40] * 6):
        assert np.isnan(row[0][0])
        assert row[0][1] == at[0]


@pytest.mark.parametrize("place", PLACES[1:], ids=str)
def test_a_count_beyond_the_plan_is_refused(tmp_path: Path, place: tuple[str, str, int]) -> None:
    chooser = Chooser(tmp_path, place, rows_of(100))
    for count in (-1, MOST + 1):
        with pytest.raises(ValueError, match="counts"):
            chooser.run([0], [count])
