"""A GPU computes the bits of the cpu backend: products of every type, attention, whole models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, moe_ops, open_backend, ops
from chaski.ml.backend import Backend
from chaski.ml.cuda.operations.products import SUPER_CHOICES
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.moe_ops import Gating
from chaski.ml.products import head_linear
from tests.cuda.devices import BACKENDS
from tests.ml.attending import Attender
from tests.ml.both_backends import uniform
from tests.native.matmul_rule import TYPES, activations, random_weights
from tests.rewriting import bytes_as
from tests.tiers import long_after
from tests.tiny_llama import write_tiny_llama

F32 = npt.NDArray[np.float32]
Weights = dict[str, Weight]
Record = Callable[[Tensor, Weights], Tensor]
MOST = 140

on_each = pytest.mark.parametrize("backend", BACKENDS)


def run(
    backend: str, path: Path, record: Record, ids: list[int], plain: tuple[str, ...] = (), **inputs: Any
) -> F32:
    """Return the result of a graph over ids, with the weights of a file."""
    opened: Backend = open_backend(backend, CPUOptions(threads=1))
    with open_gguf(path) as file:
        weights = {
            name: Weight(info.shape, plain=name in plain, name=name) for name, info in file.tensors.items()
        }
        opened.place([(weights[name], info) for name, info in file.tensors.items()])
        graph = Graph()
        given = graph.input("ids", (Dim("tokens", MOST),), DType.I32)
        graph.output("y", record(given, weights))
        plan = opened.compile(graph)
        opened.load(lambda share: None)
        found = plan.launch({"ids": np.array(ids, np.int32), **inputs}).rows("y").copy()
        opened.close()
    return found


def assert_same(
    backend: str, path: Path, record: Record, ids: list[int], plain: tuple[str, ...] = (), **inputs: Any
) -> None:
    expected = run("cpu", path, record, ids, plain, **inputs)
    found = run(backend, path, record, ids, plain, **inputs)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def write(path: Path, **tensors: Any) -> Path:
    given = {
        name: (each, QuantType.F32) if isinstance(each, np.ndarray) else each
        for name, each in tensors.items()
    }
    write_gguf(path, {"general.architecture": "test"}, given)
    return path


# Each number of tokens up to eight has its own program; types with super-blocks have programs for 1, 8 and 16
# tokens. From 9 or 17 tokens on, another kernel multiplies.
TOKENS = [1, 5, 70, 2, 3, 4, 8, 9, 16, 17, 33, 129]
USUAL_TYPES = [QuantType.F16, QuantType.Q8_0, QuantType.Q4_1, QuantType.Q4_K, QuantType.Q6_K, QuantType.Q2_K]


def products() -> Iterator[Any]:
    """Return all types with all numbers of tokens; one token of each, and some others, are usual."""
    for type in TYPES:
        for tokens in TOKENS:
            is_usual = tokens == 1 or (type in USUAL_TYPES and tokens in (5, 16, 70))
            marks = () if is_usual else (pytest.mark.slow,)
            yield pytest.param(type, tokens, marks=marks, id=f"{type.name}-{tokens}")


@pytest.mark.timed
@pytest.mark.long
@on_each
@pytest.mark.parametrize(("type", "tokens"), list(products()))
def test_products(tmp_path: Path, backend: str, type: QuantType, tokens: int) -> None:
    """It tests 39 rows with a bias, and a width with a few blocks more than groups of lanes."""
    width = 33 if type.block_size == 1 else 2048 + type.block_size * (3 if type.block_size == 32 else 1)
    rows = 39
    path = write(
        tmp_path / "a.gguf",
        table=activations(MOST, width),
        weight=bytes_as(random_weights(type, rows, width), type, (rows, width)),
        bias=uniform(rows),
    )

    def record(ids: Tensor, w: Weights) -> Tensor:
        return ops.linear(ops.embedding(ids, w["table"]), w["weight"], w["bias"])

    assert_same(backend, path, record, list(range(tokens)))


def thread_blocks() -> Iterator[Any]:
    """Return the thread blocks for super-blocks and many tokens; one with shared super-blocks is usual."""
    for type in (QuantType.Q2_K, QuantType.Q3_K, QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K):
        for choice in SUPER_CHOICES:
            if type is QuantType.Q6_K and choice == (4, 4, 32):
                continue  # needs more shared memory than any GPU has
            is_usual = type is QuantType.Q4_K and choice in ((8, 1, 64), (4, 4, 32))
            yield pytest.param(type, choice, marks=() if is_usual else (pytest.mark.slow,))


@pytest.mark.long
@pytest.mark.skipif(
    int(os.environ.get("CHASKI_EMULATED_SHARED", 227)) < 227, reason="some need all memory of an H200"
)
@on_each
@pytest.mark.parametrize(("type", "choice"), list(thread_blocks()), ids=str)
def test_thread_blocks_of_many_tokens(
    tmp_path: Path, backend: str, type: QuantType, choice: tuple[int, int, int], monkeypatch: Any
) -> None:
    """It tests 300 rows, 70 tokens and five super-blocks, a last stage with fewer than others."""
    monkeypatch.setattr("chaski.ml.cuda.operations.products.SUPER_CHOICES", (choice,))
    path = write(
        tmp_path / "a.gguf",
        table=activations(MOST, 1280),
        weight=bytes_as(random_weights(type, 300, 1280), type, (300, 1280)),
    )

    def record(ids: Tensor, w: Weights) -> Tensor:
        return ops.linear(ops.embedding(ids, w["table"]), w["weight"])

    assert_same(backend, path, record, list(range(70)))


@pytest.mark.long
@on_each
@pytest.mark.parametrize(
    ("type", "tokens"),
    [
        (QuantType.Q4_K, 129),
        (QuantType.Q8_0, 70),
        *(
            pytest.param(type, tokens, marks=pytest.mark.slow)
            for type, tokens in [
                (QuantType.Q6_K, 129),
                (QuantType.Q5_1, 129),
                (QuantType.Q2_K, 40),
                (QuantType.Q6_K, 33),
            ]
        ),
    ],
    ids=str,
)
def test_products_of_many_rows(tmp_path: Path, backend: str, type: QuantType, tokens: int) -> None:
    """A thread block computes several panels of 16 rows, and a warp may compute two."""
    rows, width = 215, 1056 if type.block_size == 32 else 1280
    path = write(
        tmp_path / "a.gguf",
        table=activations(MOST, width),
        weight=bytes_as(random_weights(type, rows, width), type, (rows, width)),
    )
    record: Record = lambda ids, w: ops.linear(ops.embedding(ids, w["table"]), w["weight"])  # noqa: E731
    assert_same(backend, path, record, list(range(tokens)))


@pytest.mark.long
@on_each
@pytest.mark.parametrize("type", [QuantType.Q8_0, QuantType.Q4_1, QuantType.IQ4_XS], ids=lambda t: t.name)
def test_products_of_other_types_read_super_blocks_too(tmp_path: Path, backend: str, type: QuantType) -> None:
    path = write(
        tmp_path / "a.gguf",
        table=activations(MOST, 512),
        weight=bytes_as(random_weights(type, 32, 512), type, (32, 512)),
        other=bytes_as(random_weights(QuantType.Q4_K, 32, 512), QuantType.Q4_K, (32, 512)),
    )

    def record(ids: Tensor, w: Weights) -> Tensor:
        x = ops.embedding(ids, w["table"])
        return ops.linear(x, w["weight"]) + ops.linear(x, w["other"])

    assert_same(backend, path, record, [3, 0, 7])


@pytest.mark.long
@on_each
def test_activations_of_every_size(tmp_path: Path, backend: str) -> None:
    """Rows with zeros, tiny and large numbers, one far larger element, and equal magnitudes."""
    table = np.concatenate([activations(32, 768), np.zeros((8, 768), np.float32)])
    table[-7] = 1e-35
    table[-6] = 1.0
    table[-5, 300] = 1e30
    table[-4] = np.float32(1e33) * np.sign(activations(1, 768)[0])
    table[-3, ::2] = 127.0
    table[-2] = np.repeat(np.float32(2.0) ** -np.arange(24), 32)
    for type in (QuantType.Q4_K, QuantType.Q6_K, QuantType.Q8_0):
        weight = bytes_as(random_weights(type, 16, 768), type, (16, 768))
        path = write(tmp_path / f"{type.name}.gguf", table=table, weight=weight)
        record: Record = lambda ids, w: ops.linear(ops.embedding(ids, w["table"]), w["weight"])  # noqa: E731
        assert_same(backend, path, record, list(range(40)))


@pytest.mark.timed
@pytest.mark.long
@on_each
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_rows_of_a_table(tmp_path: Path, backend: str, type: QuantType) -> None:
    width = 2 * max(32, type.block_size)
    path = write(tmp_path / "a.gguf", table=bytes_as(random_weights(type, 37, width), type, (37, width)))
    assert_same(backend, path, lambda ids, w: ops.embedding(ids, w["table"]), [36, 0, 17, 16, 15, 36])


@on_each
@pytest.mark.parametrize("size", [1, 5, 16, 33, 64, 520, 1100, 8704])
def test_norms(tmp_path: Path, backend: str, size: int) -> None:
    path = write(tmp_path / "a.gguf", table=uniform(11, 3 * size), weight=uniform(size), bias=uniform(size))

    def record(ids: Tensor, w: Weights) -> Tensor:
        x = ops.embedding(ids, w["table"]).reshape(3, size)
        y = ops.layer_norm(x, w["weight"], w["bias"], 1e-5) + ops.rms_norm(x, None, 1e-5)
        y = y + ops.rms_norm(x, w["weight"], 1e-2) + ops.layer_norm(x, w["weight"], None, 1e-3)
        return y.reshape(3 * size)

    assert_same(backend, path, record, [1, 0, 9, 9])


@pytest.mark.long
@on_each
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_elementwise(tmp_path: Path, backend: str, scale: float) -> None:
    path = write(tmp_path / "a.gguf", table=uniform(11, 37) * np.float32(scale), up=uniform(11, 37))

    def record(ids: Tensor, w: Weights) -> Tensor:
        x, up = ops.embedding(ids, w["table"]), ops.embedding(ids, w["up"])
        y = ops.swiglu(x, up) + ops.geglu(x, up) + ops.clamped_swiglu(x, up, alpha=1.7, limit=7.0)
        y = y + ops.sigmoid(x) + ops.softplus(x) + ops.relu(x) + ops.silu(x) + ops.gelu(x) + ops.gelu_tanh(x)
        y = y + ops.quick_gelu(x) + ops.softcap(x, cap=30.0) + ops.clamp(x, low=-3.0, high=2.0)
        return ops.multiply(y * 0.7, up) + ops.exp(ops.clamp(x, low=-30.0, high=3.0))

    assert_same(backend, path, record, [1, 0, 9])


@on_each
def test_rows_and_columns(tmp_path: Path, backend: str) -> None:
    path = write(tmp_path / "a.gguf", table=uniform(11, 36), vector=uniform(36), matrix=uniform(36, 20))

    def record(ids: Tensor, w: Weights) -> Tensor:
        x = ops.multiply_vector(ops.add_vector(ops.embedding(ids, w["table"]), w["vector"]), w["vector"])
        left, right = ops.slice(x, 0, 12), ops.slice(x, 12, 24)
        y = ops.concat([(right, 0, 1), (left, 24, 1)])
        y = ops.concat([(ops.slice(y, 0, 18), 0, 2), (ops.slice(y, 18, 18), 1, 2)])
        y = ops.scale_rows(y, ops.rms(x))
        y = ops.scale_heads(y.reshape(4, 9), np.array([1.5, -2, 0.3, 7], np.float32)).reshape(36)
        return ops.product(y.rows(ids), w["matrix"])

    assert_same(backend, path, record, [1, 0, 2, 1], plain=("matrix",))


@on_each
@pytest.mark.parametrize("width", [7, 2048, 5001])
def test_sums_in_double_precision(tmp_path: Path, backend: str, width: int) -> None:
    path = write(tmp_path / "a.gguf", table=uniform(11, width))

    def record(ids: Tensor, w: Weights) -> Tensor:
        x = ops.embedding(ids, w["table"])
        return ops.scale_rows(ops.gaussian_top_k(x, multiplier=0.5), ops.rms(x))

    assert_same(backend, path, record, [1, 0, 9])


TYPES_OF_STORAGE = [
    (DType.I16, DType.I16),
    (DType.F16, DType.F16),
    (DType.BF16, DType.F32),
    (DType.F32, DType.I16),
    (DType.Q8_0, DType.Q4_0),
    (DType.Q4_0, DType.Q8_0),
    (DType.Q3_0, DType.Q3_0),
]


SHAPES = [(4, 2, 32), (6, 1, 80), (2, 2, 64)]
"""Numbers of query and key heads, and their size."""


@pytest.mark.timed
@pytest.mark.long
@on_each
@pytest.mark.parametrize(
    ("types", "shape"),
    [(TYPES_OF_STORAGE[0], shape) for shape in SHAPES]
    + [(types, SHAPES[0]) for types in TYPES_OF_STORAGE[1:]],
    ids=str,
)
def test_attention(
    tmp_path: Path, backend: str, types: tuple[DType, DType], shape: tuple[int, int, int]
) -> None:
    """It tests histories of several chunks in scattered cells, windows, sinks, caps, few tokens, neighbours.

    A few neighbours may have more chunks than fit.
    """
    heads, kv_heads, size = shape
    rng = np.random.default_rng(heads)
    count, tokens = 700, 40
    q = rng.standard_normal((tokens, heads, size)).astype(np.float32)
    k, v = (rng.standard_normal((count, kv_heads, size)).astype(np.float32) for _ in range(2))
    cells = rng.permutation(1024)[:count].astype(np.int32)
    cells[256:512] = np.sort(cells[256:512])
    sinks = rng.standard_normal(heads).astype(np.float32)
    for extra in ({}, {"sinks": sinks}, {"softcap": 5.0}):
        found = []
        for name in ("cpu", backend):
            options = (CPUOptions(threads=1),)
            attender = Attender(
                tmp_path, name, q, k, v, cells, types=types, num_cells=1024, options=options, **extra
            )
            few = attender.attend(range(3), [(0, 700, 0), (250, 511, 100), (699, 700, 0)])
            some = attender.attend(range(30), [(0, 670 + i, 0) for i in range(30)])
            many = attender.attend(range(tokens), [(0, 660 + i, 0) for i in range(tokens)])
            others = attender.attend(range(tokens), [(9 * i, 10 * i + 20, i) for i in range(tokens)])
            found.append(np.concatenate([few, some, many, others]))
            attender.backend.close()
        np.testing.assert_array_equal(found[1].view(np.uint32), found[0].view(np.uint32))


@on_each
@pytest.mark.parametrize(
    "dtype",
    [
        DType.I16,
        *(pytest.param(each, marks=pytest.mark.long) for each in (DType.F16, DType.Q8_0, DType.Q3_0)),
        DType.Q4_0,
    ],
    ids=str,
)
def test_attention_to_values_in_keys(tmp_path: Path, backend: str, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    count, tokens = 300, 20
    q = rng.standard_normal((tokens, 5, 96)).astype(np.float32)
    k = rng.standard_normal((count, 1, 96)).astype(np.float32)
    cells = rng.permutation(512)[:count].astype(np.int32)
    found = []
    for name in ("cpu", backend):
        options = (CPUOptions(threads=1),)
        attender = Attender(
            tmp_path, name, q, k, 64, cells, types=(dtype, dtype), num_cells=512, options=options
        )
        few = attender.attend(range(3), [(0, 300, 0), (50, 211, 100), (299, 300, 0)])
        many = attender.attend(range(tokens), [(0, 280 + i, 0) for i in range(tokens)])
        found.append(np.concatenate([few, many]))
        attender.backend.close()
    np.testing.assert_array_equal(found[1].view(np.uint32), found[0].view(np.uint32))


@on_each
def test_products_of_heads(tmp_path: Path, backend: str) -> None:
    type, heads, rows, columns = QuantType.Q8_0, 3, 20, 64
    matrices = random_weights(type, heads * rows, columns)
    path = write(
        tmp_path / "a.gguf",
        table=activations(MOST, heads * columns),
        weight=bytes_as(matrices, type, (heads, rows, columns)),
    )

    def record(ids: Tensor, w: Weights) -> Tensor:
        x = ops.embedding(ids, w["table"]).reshape(heads, columns)
        return head_linear(x, w["weight"]).reshape(heads * rows)

    assert_same(backend, path, record, list(range(5)))


@pytest.mark.timed
@pytest.mark.long
@on_each
@pytest.mark.parametrize("shape", [(12, 1, 96), (2, 1, 160), (1, 1, 320)], ids=str)
def test_attention_of_long_heads(tmp_path: Path, backend: str, shape: tuple[int, int, int]) -> None:
    """It tests heads with more elements than fit in registers, and groups with more heads than columns."""
    heads, kv_heads, size = shape
    rng = np.random.default_rng(size)
    count, tokens = 300, 34
    q = rng.standard_normal((tokens, heads, size)).astype(np.float32)
    k, v = (rng.standard_normal((count, kv_heads, size)).astype(np.float32) for _ in range(2))
    cells = rng.permutation(512)[:count].astype(np.int32)
    found = []
    for name in ("cpu", backend):
        options = (CPUOptions(threads=1),)
        types = DType.I16, DType.I16
        attender = Attender(tmp_path, name, q, k, v, cells, types=types, num_cells=512, options=options)
        few = attender.attend(range(2), [(0, 300, 0), (20, 90, 100)])
        many = attender.attend(range(tokens), [(0, 60 + i, 0) for i in range(tokens)])
        found.append(np.concatenate([few, many]))
        attender.backend.close()
    np.testing.assert_array_equal(found[1].view(np.uint32), found[0].view(np.uint32))


@pytest.mark.timed
@pytest.mark.long
@on_each
def test_attention_over_more_chunks_than_are_joined_at_a_time(tmp_path: Path, backend: str) -> None:
    """The history has 129 chunks and a part of one, and lists every cell twice."""
    rng = np.random.default_rng(3)
    count, size = 16_600, 32
    q = rng.standard_normal((1, 2, size)).astype(np.float32)
    k, v = (rng.standard_normal((count, 1, size)).astype(np.float32) for _ in range(2))
    cells = rng.permutation(count).astype(np.int32)
    history = np.concatenate([cells, cells[::-1]])
    found = []
    for name in ("cpu", backend):
        options = (CPUOptions(threads=1),)
        types = DType.I16, DType.I16
        attender = Attender(tmp_path, name, q, k, v, cells, types=types, num_cells=count, options=options)
        found.append(attender.attend([0], [(0, len(history), 0)], history))
        attender.backend.close()
    np.testing.assert_array_equal(found[1].view(np.uint32), found[0].view(np.uint32))


@on_each
@pytest.mark.parametrize(
    "types",
    [TYPES_OF_STORAGE[0], *(pytest.param(types, marks=pytest.mark.long) for types in TYPES_OF_STORAGE[1:])],
    ids=lambda pair: "-".join(t.value for t in pair),
)
def test_cells_that_the_host_has_kept(tmp_path: Path, backend: str, types: tuple[DType, DType]) -> None:
    """Cells read in two parts and written to other cells of another storage give the same attention."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((count, 2, 32)).astype(np.float32) for count in (4, 90, 90))
    first, other = (rng.permutation(1024)[:90].astype(np.int32) for _ in range(2))
    options = (CPUOptions(threads=1),)
    known = Attender(tmp_path, backend, q, k, v, first, types=types, options=options)
    blank = Attender(tmp_path, backend, q, 0 * k, 0 * v, other, types=types, options=options)
    source = known.backend.cell_rows([known.keys, known.values])
    target = blank.backend.cell_rows([blank.keys, blank.values])
    block = np.zeros(source.num_bytes(100), np.uint8)
    arriving = [source.read(first[:37], block, 3, 100), source.read(first[37:], block, 40, 100)]
    for each in arriving:
        assert each is not None
        each.result()
    target.write(other[:1], block, 3, 100)
    target.write(other[1:], block, 4, 100)
    spans = [(0, 90 - i, 0) for i in range(4)]
    np.testing.assert_array_equal(
        blank.attend(range(4), spans).view(np.uint32), known.attend(range(4), spans).view(np.uint32)
    )
    known.backend.close()
    blank.backend.close()


@pytest.mark.long
@on_each
def test_a_model_with_a_draft(tmp_path: Path, backend: str) -> None:
    target = write_tiny_llama(tmp_path / "target.gguf", matrices=QuantType.Q8_0)
    draft = write_tiny_llama(tmp_path / "draft.gguf", matrices=QuantType.Q4_0)
    found = []
    for name in ("cpu", backend):
        with chaski.load(target, threads=1, backend=name, draft=draft, context=256) as llm:
            result = llm.generate("once upon", num_predict=50, temperature=0)
            found.append((result.token_ids, result.done.proposed_tokens, result.done.accepted_tokens))
    assert found[0] == found[1]
    assert found[0][1] > 0


@on_each
def test_angles_that_are_not_kept(tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host keeps the angles of few positions, and computes all others for each batch."""
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    with chaski.load(path, threads=1) as llm:
        expected = llm.generate("once upon a time", num_predict=40, temperature=0).token_ids
    monkeypatch.setattr("chaski.ml.cuda.host_part._MOST_KEPT", 20)
    with chaski.load(path, threads=1, backend=backend) as llm:
        assert llm.generate("once upon a time", num_predict=40, temperature=0).token_ids == expected


@pytest.mark.long
@on_each
@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0", "q3_0"])
def test_keys_that_move(backend: str, kv_type: str) -> None:
    """A context that fills repeatedly rotates the keys that stay, in any form."""
    path = ARCHITECTURES.parent / "llama" / "quantized" / "q8_0.gguf"
    options: Any = {"num_predict": 120, "temperature": 0, "ignore_eos": True, "logprobs": True}
    found = []
    for name in ("cpu", backend):
        with chaski.load(path, threads=1, backend=name, context=48, kv_type=kv_type) as llm:
            answer = llm.generate([5, 9, 2, 7], **options)
            assert answer.shifted_tokens > 0
            found.append((answer.token_ids, [each.logprob for each in answer.logprobs]))
    assert found[0] == found[1]


@on_each
@pytest.mark.parametrize("matrices", long_after(1, ["Q8_0", "F32", "Q4_0"]))
def test_a_model(tmp_path: Path, backend: str, matrices: str) -> None:
    """It tests logits of a prompt in batches, and several answers: one with penalties, one cached."""
    path = write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType[matrices])
    ids = [int(i) for i in np.random.default_rng(1).integers(5, 250, 90)]
    found = []
    for name in ("cpu", backend):
        with chaski.load(path, threads=1, backend=name, parallel=3, context=256) as llm:
            logits = llm.logits(ids)
            answers = [
                llm.generate(f"story {seed}", num_predict=40, seed=seed, temperature=1.0).token_ids
                for seed in (1, 2)
            ]
            again = llm.generate("story 1", num_predict=40, seed=1, temperature=1.0)
            assert again.cached_tokens > 0
            found.append((logits.tobytes(), answers, again.token_ids))
    assert found[0] == found[1]


def experts_by_types() -> Iterator[Any]:
    """Return all types with one token, few and many; some of each are usual."""
    usual = {1: [QuantType.Q8_0, QuantType.MXFP4], 12: [QuantType.F16, QuantType.Q4_K], 130: [QuantType.Q6_K]}
    for type in TYPES:
        for tokens in (1, 12, 40, 130):
            marks = () if type in usual.get(tokens, ()) else (pytest.mark.slow,)
            yield pytest.param(type, tokens, marks=marks, id=f"{type.name}-{tokens}")


@pytest.mark.long
@on_each
@pytest.mark.parametrize(("type", "tokens"), list(experts_by_types()))
def test_experts(tmp_path: Path, backend: str, type: QuantType, tokens: int) -> None:
    """Each token uses three of six experts, one with most rows; all gates, and weights on both sides."""
    experts, count, hidden = 6, 3, 2 * max(32, type.block_size)
    rng = np.random.default_rng(tokens)
    logits = rng.standard_normal((MOST, experts)).astype(np.float32)
    logits[:, 4] += 2

    def matrices(rows: int, columns: int) -> Any:
        return bytes_as(random_weights(type, experts * rows, columns), type, (experts, rows, columns))

    path = write(
        tmp_path / "a.gguf",
        table=activations(MOST, hidden),
        logits=logits,
        rank=uniform(experts),
        gate=matrices(48, hidden),
        up=matrices(48, hidden),
        bias=uniform(experts, 48),
        wide=uniform(48, hidden),
        down=matrices(24, hidden),
    )

    def record(ids: Tensor, w: Weights) -> Tensor:
        x, given = ops.embedding(ids, w["table"]), ops.embedding(ids, w["logits"])
        routes = moe_ops.router(given, count, Gating.SOFTMAX, normalized=True, scale=1.5)
        groups = moe_ops.group_by_expert(routes, experts)
        rows = moe_ops.dispatch(x, groups)
        gate = moe_ops.expert_linear(rows, groups, w["gate"], w["bias"])
        up = moe_ops.expert_linear(rows, groups, w["up"])
        y = moe_ops.combine(ops.swiglu(gate, up), groups, routes)
        routes = moe_ops.router(given, count, Gating.SIGMOID, bias=w["rank"])
        routes = moe_ops.scale_experts(routes, w["rank"])
        groups = moe_ops.group_by_expert(routes, experts)
        hidden_rows = moe_ops.dispatch(ops.product(y, w["wide"]), groups, routes)
        down = moe_ops.expert_linear(hidden_rows, groups, w["down"])
        y = moe_ops.combine(moe_ops.scale_by_expert(down, groups, w["rank"]), groups)
        return ops.concat(
            [(y, 0, 1), (moe_ops.router(given, count, Gating.CHOSEN_SOFTMAX).reshape(6), 24, 1)]
        )

    assert_same(backend, path, record, list(range(tokens)), plain=("bias", "wide"))


@on_each
@pytest.mark.parametrize("tokens", [1, 40])
def test_experts_that_are_elsewhere(tmp_path: Path, backend: str, tokens: int) -> None:
    """Tokens have the numbers of matrices; the last number stands for experts that are elsewhere."""
    type, matrices, hidden, count = QuantType.Q8_0, 3, 64, 2
    weights = bytes_as(random_weights(type, matrices * 48, hidden), type, (matrices, 48, hidden))
    random = np.random.default_rng(1)
    path = write(
        tmp_path / "a.gguf",
        table=activations(MOST, hidden),
        logits=random.standard_normal((MOST, MOST)).astype(np.float32),
        gate=weights,
        rank=uniform(matrices),
    )

    def record(ids: Tensor, w: Weights) -> Tensor:
        routes = moe_ops.router(ops.embedding(ids, w["logits"]), count, Gating.SOFTMAX)
        numbers = ids.graph.input("numbers", (Dim("experts", MOST),), DType.I32)
        groups = moe_ops.group_by_expert(routes, MOST, places=moe_ops.ExpertPlaces(numbers, matrices))
        rows = moe_ops.dispatch(ops.embedding(ids, w["table"]), groups)
        y = moe_ops.scale_by_expert(moe_ops.expert_linear(rows, groups, w["gate"]), groups, w["rank"])
        other = ops.embedding(ids, w["table"])
        both = moe_ops.dispatch(ops.slice(other, 0, 48), moe_ops.group_by_expert(routes, MOST))
        joined = moe_ops.join_experts(y, groups, both, moe_ops.group_by_expert(routes, MOST))
        return moe_ops.combine(joined, groups, routes)

    numbers = random.integers(0, matrices + 1, MOST).astype(np.int32)
    assert_same(backend, path, record, list(range(tokens)), numbers=numbers)


@on_each
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_experts_that_a_token_has_twice(tmp_path: Path, backend: str, tokens: int) -> None:
    """Then an expert may have more rows than there are tokens."""
    type, experts, hidden = QuantType.Q8_0, 2, 64
    weights = bytes_as(random_weights(type, experts * 48, hidden), type, (experts, 48, hidden))
    routes = np.zeros((MOST, 6), np.float32)
    routes[:, 3:] = np.random.default_rng(1).standard_normal((MOST, 3))
    routes[3, 1] = 1
    path = write(tmp_path / "a.gguf", table=activations(MOST, hidden), routes=routes, gate=weights)

    def record(ids: Tensor, w: Weights) -> Tensor:
        chosen = ops.embedding(ids, w["routes"]).reshape(2, 3)
        groups = moe_ops.group_by_expert(chosen, experts, repeats=True)
        rows = moe_ops.dispatch(ops.embedding(ids, w["table"]), groups)
        return moe_ops.combine(moe_ops.expert_linear(rows, groups, w["gate"]), groups, chosen)

    assert_same(backend, path, record, list(range(tokens)))


@on_each
def test_hashes_of_ngrams_and_heads(tmp_path: Path, backend: str) -> None:
    table = np.random.default_rng(2).standard_normal((MOST, 48)).astype(np.float32)
    before = np.random.default_rng(3).integers(0, 9, (MOST, 48)).astype(np.float32)
    path = write(tmp_path / "a.gguf", table=table, before=before)
    factors = np.array([0.5, -3.0, 1.7], np.float32)

    def record(ids: Tensor, w: Weights) -> Tensor:
        x = ops.embedding(ids, w["table"]).reshape(3, 16)
        numbers = ops.slice(ops.embedding(ids, w["before"]), 0, 3)
        row = ops.hash_ngrams(ids, numbers, [2**61 - 1, 2**40 + 7, 99], 101, 7, 4)
        y = [(ops.embedding(row, w["table"]), 0, 1), (ops.scale_heads(x, factors).reshape(48), 48, 1)]
        y += [(ops.head_sums(x), 96, 1), (ops.rooted_dots(x, x * -0.5, 0.25, 1e-6), 99, 1)]
        return ops.concat([*y, (ops.token_numbers(ids), 102, 1)])

    assert_same(backend, path, record, list(range(40)))


@on_each
def test_products_with_vectors_for_distances(tmp_path: Path, backend: str) -> None:
    table = np.random.default_rng(2).standard_normal((MOST, 48)).astype(np.float32)
    path = write(tmp_path / "a.gguf", table=table, vectors=table[:, :16])

    def record(ids: Tensor, w: Weights) -> Tensor:
        x = ops.embedding(ids, w["table"]).reshape(3, 16)
        found = ops.relative_dots(x, ops.embedding(ids, w["vectors"]), ids, 19)
        return found.reshape(3 * 19)

    assert_same(backend, path, record, list(range(40)))


ARCHITECTURES = Path(__file__).parents[1] / "data" / "architectures"
DENSE = ["gemma2", "gemma3n", "granite", "phi3-long", "qwen3"]
MORE_DENSE = [
    "gemma",
    "gemma3",
    "gemma4",
    "gemma4-small",
    "internlm2",
    "mistral3",
    "phi3",
    "phi3-short",
    "qwen2",
]
EXPERTS = ["gpt-oss-mxfp4", "qwen3moe"]
MORE_EXPERTS = ["gemma4-moe", "gpt-oss", "granitemoe", "llama4", "mixtral", "qwen2moe"]


RECURRENT = ["lfm2", "qwen35moe"]
MORE_RECURRENT = ["qwen35", "qwen35-even", "qwen3next"]


@pytest.mark.long
@on_each
@pytest.mark.parametrize(
    "name",
    [
        *(*DENSE, *EXPERTS, *RECURRENT),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (*MORE_DENSE, *MORE_EXPERTS, *MORE_RECURRENT)
        ),
    ],
)
def test_architectures(backend: str, name: str) -> None:
    """It covers windows, caps, biases, norms of heads, several kinds of frequencies, and full contexts."""
    prompt = [5, 9, 2, 7, 1, 3, 8, 8, 4, 6, 5, 5, 2, 9, 9, 1, 4, 7]
    options = {"num_predict": 60, "temperature": 0, "ignore_eos": True, "num_keep": 16}
    found = []
    for each in ("cpu", backend):
        with chaski.load(
            ARCHITECTURES / f"{name}.gguf", threads=1, context=64, parallel=3, backend=each
        ) as llm:
            logits = llm.logits(prompt * 3)
            prompts = [prompt, [*prompt, 3, 3], [*prompt, 9]]
            answers = [result.token_ids for result in llm.generate_many(prompts, **options)]
            found.append((logits.tobytes(), answers))
    assert found[0] == found[1]


@on_each
def test_three_tokens_at_most_choose_experts(backend: str) -> None:
    found = []
    for each in ("cpu", backend):
        path = ARCHITECTURES / "qwen3moe.gguf"
        with chaski.load(path, threads=1, context=64, parallel=1, num_batch=3, backend=each) as llm:
            found.append(llm.logits([5, 9, 2, 7, 1, 3, 8]).tobytes())
    assert found[0] == found[1]
