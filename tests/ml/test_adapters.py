"""The steps of LoRA adapters match the definition bit for bit, for each row separately."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski import _native
from chaski.errors import AdapterError
from chaski.formats.adapter import open_adapter
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.backend import AdapterSlots, Backend, LoraMatrices
from chaski.ml.graph import Adapters, AdapterTable, Dim, DType, Graph
from tests.adapters import metadata, random_adapter
from tests.backends import BACKENDS
from tests.ml.both_backends import MAX_TOKENS, bound

F32 = npt.NDArray[np.float32]
ROWS, COLUMNS = 41, 70
LISTS = np.array([0, -1, 1, 2, 0, 1, 2, -1, 0], np.int32)
USES = [(0, 0, 1.0), (1, 2, -0.7), (1, 0, 0.3), (2, 1, 1.5)]
RANKS = (4, 20, 1)


def uses() -> npt.NDArray[np.int32]:
    found = np.array([(number, slot, 0) for number, slot, _ in USES], np.int32)
    found[:, 2] = np.array([scale for *_, scale in USES], np.float32).view(np.int32)
    return found


def slots_of(table: AdapterTable) -> AdapterSlots:
    slots = table.handle
    assert hasattr(slots, "put")
    return slots  # type: ignore[return-value]


def fill(table: AdapterTable, path: Path, type: QuantType) -> None:
    for slot, rank in enumerate(RANKS):
        adapter = random_adapter(path / "a.gguf", {"w": (ROWS, COLUMNS)}, slot, rank, type, size=0.5)
        pair = open_adapter(adapter).tensors["w"]
        slots_of(table).put(slot, {0: LoraMatrices(pair.a, pair.b, pair.scale(32.0))})


def computed(backend: Backend, path: Path, type: QuantType, rows: list[int], residual: bool) -> F32:
    """Return the result of adapters on a product of zeros, which every backend computes exactly."""
    random = np.random.default_rng(3)
    arrays = {
        "table": random.standard_normal((MAX_TOKENS, COLUMNS)).astype(np.float32),
        "beside": random.standard_normal((MAX_TOKENS, ROWS)).astype(np.float32),
        "w": np.zeros((ROWS, COLUMNS), np.float32),
    }
    weights = bound(backend, path, arrays)
    table = backend.adapter_table(3, 1, 64)
    fill(table, path, type)
    graph, tokens = Graph(), Dim("tokens", MAX_TOKENS)
    ids = graph.input("ids", (tokens,), DType.I32)
    lists = {"tokens": graph.input("lists", (tokens,), DType.I32)}
    listed = graph.input("uses", (Dim("uses", 8), 3), DType.I32)
    graph.adapters = Adapters(table, lists, listed, frozenset([weights["w"]]))
    y = ops.linear(ops.embedding(ids, weights["table"]), weights["w"])
    beside = ops.embedding(ids, weights["beside"])
    graph.output("y", beside + y if residual else y)
    values = {"ids": np.array(rows, np.int32), "lists": LISTS[rows], "uses": uses()}
    return backend.compile(graph).launch(values).rows("y").copy()


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("type", [QuantType.F32, QuantType.F16, QuantType.BF16])
def test_every_instruction_set_computes_the_definition(
    type: QuantType, residual: bool, tmp_path: Path
) -> None:
    every = list(range(MAX_TOKENS))
    expected = computed(open_backend("reference"), tmp_path, type, every, residual)
    changed = np.abs(computed(open_backend("reference"), tmp_path, type, every, False)).max(axis=1)
    assert (changed > 0.1).tolist() == (LISTS >= 0).tolist()
    for isa in _native.isa_names():
        for threads in (1, 2):
            backend = open_backend("cpu", CPUOptions(threads=threads, isa=isa))
            assert (computed(backend, tmp_path, type, every, residual) == expected).all()


def test_a_row_is_what_it_is_alone(tmp_path: Path) -> None:
    backend = open_backend("cpu", CPUOptions(threads=1))
    whole = computed(backend, tmp_path, QuantType.F16, list(range(MAX_TOKENS)), True)
    for rows in ([0], [5], [3, 2], [8, 7, 6, 5, 4]):
        backend = open_backend("cpu", CPUOptions(threads=1))
        assert (computed(backend, tmp_path, QuantType.F16, rows, True) == whole[rows]).all()


def test_quantized_adapters_are_what_they_mean(tmp_path: Path) -> None:
    shape = {"w": (64, 96)}
    pair = open_adapter(random_adapter(tmp_path / "a.gguf", shape, 1, 32, QuantType.Q8_0)).tensors["w"]
    assert {info.type for info in pair} == {QuantType.Q8_0}
    for name in BACKENDS:
        backend = open_backend(name)
        slots = slots_of(backend.adapter_table(1, 1, 64))
        pairs = {0: LoraMatrices(pair.a, pair.b, 1.0)}
        slots.put(0, pairs)
        assert list(slots.num_bytes(pairs).values()) == [4 * 32 * (64 + 96)]
        slots.clear(0)


@pytest.mark.parametrize("name", BACKENDS)
def test_values_that_are_not_finite_are_refused(name: str, tmp_path: Path) -> None:
    words = np.zeros((16, 32), np.uint16)
    words[7, 31] = 0x7C00
    lazy = LazyTensor((16, 32), QuantType.F16, lambda: [words.view(np.uint8)])
    good = np.zeros((64, 16), np.float32), QuantType.F16
    write_gguf(tmp_path / "a.gguf", metadata(), {"w.lora_a": lazy, "w.lora_b": good})
    pair = open_adapter(tmp_path / "a.gguf").tensors["w"]
    slots = slots_of(open_backend(name).adapter_table(1, 1, 64))
    with pytest.raises(AdapterError, match=r"w.lora_a has values"):
        slots.put(0, {0: LoraMatrices(pair.a, pair.b, 1.0)})


@pytest.mark.parametrize(
    ("lists", "given", "said"),
    [
        ([1], [(0, 0, 0)], "no list 1"),
        ([0], [(1, 0, 0)], "not in order"),
        ([0], [(0, 3, 0)], "no slot 3"),
        ([0], [(0, 1, 0), (0, 1, 0), (0, 1, 0)], "too many ranks"),
    ],
)
def test_a_plan_refuses_what_is_not_there(
    lists: list[int], given: list[tuple[int, int, int]], said: str, tmp_path: Path
) -> None:
    backend = open_backend("cpu", CPUOptions(threads=1))
    weights = bound(backend, tmp_path, {"w": np.zeros((ROWS, COLUMNS), np.float32)})
    table = backend.adapter_table(3, 1, 64)
    fill(table, tmp_path, QuantType.F32)
    graph, tokens = Graph(), Dim("tokens", MAX_TOKENS)
    x = graph.input("x", (tokens, COLUMNS), DType.F32)
    inputs = {"tokens": graph.input("lists", (tokens,), DType.I32)}
    listed = graph.input("uses", (Dim("uses", 8), 3), DType.I32)
    graph.adapters = Adapters(table, inputs, listed, frozenset([weights["w"]]))
    graph.output("y", ops.linear(x, weights["w"]))
    values = {
        "x": np.zeros((1, COLUMNS), np.float32),
        "lists": np.array(lists, np.int32),
        "uses": np.array(given, np.int32),
    }
    with pytest.raises(ValueError, match=said):
        backend.compile(graph).launch(values)
