"""Every operation on the cpu backend against its definition on the reference backend, on odd sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.cpu.operations import OPERATIONS
from chaski.ml.graph import Dim, DType, Graph, Rope, Tensor, Weight
from chaski.ml.reference.cached_ops import hadamard
from chaski.ml.reference.ops import DEFINITIONS
from tests.backends import BACKENDS, USUAL
from tests.ml.both_backends import MAX_TOKENS, bound, results, uniform


def test_the_cpu_backend_has_every_operation_that_it_asks_for() -> None:
    of_other_layouts = {"copy_cells", "dense_attention", "paged_attention"}
    launched_ahead = {"sample"}
    needed = (set(DEFINITIONS) | {"input", "reshape"}) - of_other_layouts - launched_ahead
    assert set(OPERATIONS) == needed


@pytest.mark.parametrize("size", [1, 5, 16, 33, 64])
@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_rms_norm(tmp_path: Path, isa: str, size: int, tokens: int) -> None:
    arrays = {"table": uniform(11, size), "weight": uniform(size)}
    expected, found = results(
        tmp_path,
        arrays,
        lambda ids, w, _: ops.rms_norm(ops.embedding(ids, w["table"]), w["weight"], 1e-5),
        tokens,
        isa,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("block", [16, 32, 128])
def test_hadamard(tmp_path: Path, isa: str, block: int) -> None:
    arrays = {"table": uniform(11, 3 * 128)}
    expected, found = results(
        tmp_path,
        arrays,
        lambda ids, w, _: ops.hadamard(ops.embedding(ids, w["table"]).reshape(3, 128), block),
        7,
        isa,
    )
    assert found.tobytes() == expected.tobytes()


def test_the_rotation_is_hadamards_matrix() -> None:
    matrix = np.ones((1, 1))
    while len(matrix) < 64:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = uniform(5, 2, 128)
    found = hadamard(x, block=64)
    expected = (x.reshape(-1, 64) @ matrix / 8).reshape(x.shape)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(hadamard(found, block=64), x, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0])
def test_swiglu_over_the_whole_range_of_exp(tmp_path: Path, isa: str, scale: float) -> None:
    arrays = {"table": uniform(11, 37) * np.float32(scale), "up": uniform(11, 37)}
    expected, found = results(
        tmp_path,
        arrays,
        lambda ids, w, _: ops.swiglu(ops.embedding(ids, w["table"]), ops.embedding(ids, w["up"])),
        7,
        isa,
    )
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-30)


def test_sum_and_product_with_bias_and_residual(tmp_path: Path, isa: str) -> None:
    arrays = {"table": uniform(11, 40), "weight": uniform(40, 40), "bias": uniform(40)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"])
        y = x + ops.linear(x, w["weight"], w["bias"])
        return ops.linear(y, w["weight"]) + y + x

    expected, found = results(tmp_path, arrays, record, 5, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("heads", [1, 3])
def test_norms_of_heads(tmp_path: Path, isa: str, heads: int) -> None:
    size = 37
    arrays = {"table": uniform(11, heads * size), "weight": uniform(size), "bias": uniform(size)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"]).reshape(heads, size)
        y = ops.layer_norm(x, w["weight"], w["bias"], 1e-5) + ops.rms_norm(x, None, 1e-5)
        y = y + ops.rms_norm(x, w["weight"], 1e-2) + ops.l2_norm(x, 1e-3)
        return y.reshape(heads * size)

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 37, 2500])
def test_activations(tmp_path: Path, isa: str, size: int) -> None:
    arrays = {"table": uniform(11, size) * np.float32(4), "up": uniform(11, size) * np.float32(4)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x, up = ops.embedding(ids, w["table"]), ops.embedding(ids, w["up"])
        factors = ops.position_scale(ids, length=3, beta=0.3, offset=1)
        y = ops.geglu(x, up) + ops.clamped_swiglu(x, up, alpha=1.702, limit=2.5) * 0.75
        return ops.scale_rows(ops.softcap(y, cap=5.0), factors) + ops.gelu(x) + ops.gelu_tanh(up)

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("size", [1, 37, 2500])
def test_what_follows_from_all_of_a_row(tmp_path: Path, isa: str, size: int) -> None:
    arrays = {"table": uniform(11, size) * np.float32(4) + np.float32(1)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"])
        return ops.scale_rows(ops.gaussian_top_k(x, multiplier=0.5), ops.rms(x))

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)
    assert size == 1 or 0.1 < (found == 0).mean() < 0.9


def test_each_head_has_a_factor(tmp_path: Path, isa: str) -> None:
    heads, size = 5, 37
    arrays = {"table": uniform(11, heads * size), "factors": uniform(11, heads)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"]).reshape(heads, size)
        return ops.scale_rows(x, ops.embedding(ids, w["factors"])).reshape(heads * size)

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(expected[:, :size], expected[:, size : 2 * size])


def test_factors_of_heads_that_are_the_same_in_all_rows_and_sums_of_heads(tmp_path: Path, isa: str) -> None:
    heads, size = 5, 37
    arrays = {"table": uniform(11, heads * size)}
    factors = uniform(heads)

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.scale_heads(ops.embedding(ids, w["table"]).reshape(heads, size), factors)
        return ops.scale_rows(x, ops.head_sums(x)).reshape(heads * size)

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_ngrams_of_tokens_choose_rows(tmp_path: Path, isa: str) -> None:
    """Token 3 separates texts; 0 means that there is no token."""
    sizes, numbers = (5, 7, 97), np.array([[0, 0], [5, 0], [4, 5], [9, 4], [2, 9], [7, 2]], np.float32)
    arrays = {"table": np.resize(numbers, (11, 2)), "rows": uniform(97 + 8, 6)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        before = ops.embedding(ids, w["table"])
        hashes = [
            ops.hash_ngrams(ids, before, (3**30 + 2 * size, 5**20, 7**17)[: 2 + size % 2], size, 8, 3)
            for size in sizes
        ]
        first, second, third = (ops.embedding(each, w["rows"]) for each in hashes)
        return ops.concat([(first + second + third, 0, 1), (ops.token_numbers(ids), 6, 1)])

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_array_equal(found, expected)


def test_rooted_dots(tmp_path: Path, isa: str) -> None:
    arrays = {"table": uniform(11, 3 * 33), "other": uniform(11, 3 * 33)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        a, b = (ops.embedding(ids, w[name]).reshape(3, 33) for name in ("table", "other"))
        return ops.rooted_dots(a, b, 0.3, 0.5)

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert (found < 0).any()
    assert (found > 0).any()
    assert np.abs(found).min() == pytest.approx(0.5**0.5)


def test_products_with_vectors_for_distances(tmp_path: Path, isa: str) -> None:
    """Rows of the table that do not exist count as zeros."""
    arrays = {"table": uniform(11, 3 * 33), "vectors": uniform(11, 33)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"]).reshape(3, 33)
        return ops.relative_dots(x, ops.embedding(ids, w["vectors"]), ids, 5).reshape(3 * 5)

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert (found == 0).any()
    assert (found != 0).all(axis=1).any()


def test_columns_and_products_of_them(tmp_path: Path, isa: str) -> None:
    arrays = {"table": uniform(11, 3 * 21), "vector": uniform(21)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"])
        a, b, c = (ops.slice(x, 21 * i, 21) for i in range(3))
        return ops.add_vector(ops.multiply(a, b), w["vector"]) + ops.multiply_vector(c, w["vector"])

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", [256, 512])
def test_the_first_outputs_are_those_of_the_whole_product(tmp_path: Path, isa: str, count: int) -> None:
    arrays = {"table": uniform(11, 40), "weight": uniform(517, 40)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"])
        first, whole = ops.first_outputs(x, w["weight"], count), ops.linear(x, w["weight"])
        return ops.concat([(first, 0, 1), (ops.slice(whole, 0, count), count, 1)])

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[:, :count], found[:, count:])


@pytest.mark.parametrize("count", [0, 100, 768])
def test_first_outputs_are_whole_groups_of_rows(count: int) -> None:
    graph = Graph()
    x = graph.input("x", (Dim("tokens", 2), 40), DType.F32)
    with pytest.raises(ValueError, match="first_outputs"):
        ops.first_outputs(x, Weight((517, 40)), count)


@pytest.mark.parametrize(("first", "count"), [(0, 5), (5, 4), (8, 1)])
def test_a_slice_of_every_head(tmp_path: Path, isa: str, first: int, count: int) -> None:
    arrays = {"table": uniform(11, 7 * 9)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        heads = ops.embedding(ids, w["table"]).reshape(7, 9)
        return ops.slice(heads, first, count).reshape(7 * count)

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_array_equal(found, expected)
    of_heads = arrays["table"].reshape(11, 7, 9)[..., first : first + count].reshape(11, -1)
    assert all((of_heads == row).all(axis=1).any() for row in found)


@pytest.mark.parametrize("is_used_again", [False, True])
def test_scatter(tmp_path: Path, isa: str, is_used_again: bool) -> None:
    """It writes in place if no other step reads the value, else to a copy; the run sets the count, also 0."""
    arrays = {"table": uniform(11, 21)}
    for places in ([], [3], [8, 0, 4]):
        found = []
        rows = uniform(len(places), 21)
        for name in ("reference", USUAL):
            backend = open_backend(name, CPUOptions(threads=2, isa=isa))
            weights = bound(backend, tmp_path, arrays)
            graph = Graph()
            x = ops.embedding(graph.input("ids", (Dim("tokens", MAX_TOKENS),), DType.I32), weights["table"])
            count = Dim("rows", MAX_TOKENS)
            given = graph.input("given", (count, 21), DType.F32), graph.input("places", (count,), DType.I32)
            y = ops.scatter(x, *given)
            graph.output("y", y + x if is_used_again else y)
            plan = backend.compile(graph)
            inputs = {"ids": np.arange(9), "given": rows, "places": np.array(places, np.int32)}
            found.append(plan.launch(inputs).rows("y"))
        wanted = arrays["table"][:9].copy()
        wanted[places] = rows
        np.testing.assert_array_equal(found[1], wanted + arrays["table"][:9] if is_used_again else wanted)
        np.testing.assert_array_equal(found[0], found[1])


def test_rows_are_not_put_outside(tmp_path: Path) -> None:
    backend = open_backend("cpu", CPUOptions(threads=1))
    weights = bound(backend, tmp_path, {"table": uniform(11, 21)})
    graph = Graph()
    ids = graph.input("ids", (Dim("tokens", MAX_TOKENS),), DType.I32)
    count = Dim("rows", 2)
    given = graph.input("given", (count, 21), DType.F32), graph.input("places", (count,), DType.I32)
    graph.output("y", ops.scatter(ops.embedding(ids, weights["table"]), *given))
    plan = backend.compile(graph)
    inputs = {"ids": np.arange(5), "given": uniform(1, 21), "places": np.array([5])}
    with pytest.raises(ValueError, match=r"places\[0\] = 5 is not between 0 and 4"):
        plan.launch(inputs)


def test_averages_of_rows(tmp_path: Path, isa: str) -> None:
    found = []
    arrays = {"table": uniform(11, 37)}
    for name in ("reference", USUAL):
        backend = open_backend(name, CPUOptions(threads=2, isa=isa))
        weights = bound(backend, tmp_path, arrays)
        graph = Graph()
        ids = graph.input("ids", (Dim("tokens", MAX_TOKENS),), DType.I32)
        graph.output("y", ops.average_rows(ops.embedding(ids, weights["table"]), Dim("squares", 3), 4))
        plan = backend.compile(graph)
        found.append(plan.launch({"ids": np.arange(9)}, {"squares": 2}).rows("y").copy())
        if name == USUAL:
            with pytest.raises(ValueError, match="average_rows: 9 rows are not 3 times 4"):
                plan.launch({"ids": np.arange(9)}, {"squares": 3})
    np.testing.assert_allclose(found[1], arrays["table"][:8].reshape(2, 4, 37).mean(1), atol=1e-6)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_space_to_depth_is_the_input_of_a_convolution(tmp_path: Path, isa: str) -> None:
    """It tests 2 x 4 patches in two squares with elements as channels: the kernel's view of each square."""
    arrays = {"table": uniform(9, 35)}
    squares = arrays["table"][:8].reshape(2, 2, 2, 35)
    for name in ("reference", USUAL):
        backend = open_backend(name, CPUOptions(threads=2, isa=isa))
        weights = bound(backend, tmp_path, arrays)
        graph = Graph()
        ids = graph.input("ids", (Dim("tokens", MAX_TOKENS),), DType.I32)
        graph.output("y", ops.space_to_depth(ops.embedding(ids, weights["table"]), Dim("squares", 3), 4))
        plan = backend.compile(graph)
        y = plan.launch({"ids": np.arange(9)}, {"squares": 2}).rows("y")
        np.testing.assert_array_equal(y, squares.transpose(0, 3, 1, 2).reshape(2, -1))
        if name == USUAL:
            with pytest.raises(ValueError, match="space_to_depth: 9 rows are not 3 times 4"):
                plan.launch({"ids": np.arange(9)}, {"squares": 3})


@pytest.mark.parametrize("columns", [1, 40])
def test_product_with_a_matrix_as_it_is(tmp_path: Path, isa: str, columns: int) -> None:
    arrays = {"table": uniform(11, 37), "matrix": uniform(37, columns)}
    found = []
    for name in ("reference", USUAL):
        backend = open_backend(name, CPUOptions(threads=2, isa=isa))
        weights = bound(backend, tmp_path, arrays, plain=("matrix",))
        graph = Graph()
        ids = graph.input("ids", (Dim("tokens", MAX_TOKENS),), DType.I32)
        graph.output("y", ops.product(ops.embedding(ids, weights["table"]), weights["matrix"]))
        plan = backend.compile(graph)
        found.append(plan.launch({"ids": np.arange(9)}).rows("y"))
    np.testing.assert_allclose(found[1], arrays["table"][:9] @ arrays["matrix"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_columns_side_by_side_and_in_turn(tmp_path: Path, isa: str) -> None:
    arrays = {"table": uniform(11, 4 * 7)}

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"])
        a, b, c, d = (ops.slice(x, 7 * i, 7) for i in range(4))
        return ops.concat([(a, 21, 1), (b, 2, 3), (c, 0, 3), (d, 1, 3)])

    expected, found = results(tmp_path, arrays, record, 9, isa)
    np.testing.assert_array_equal(found, expected)
    a, b, c, d = arrays["table"].reshape(11, 4, 7).swapaxes(0, 1)
    rows = np.concatenate([np.stack([c, d, b], axis=-1).reshape(11, 21), a], axis=1)
    assert all((rows == row).all(axis=1).any() for row in found)


@pytest.mark.parametrize("places", [[(0, 1), (1, 1)], [(0, 1), (3, 1)], [(0, 2), (1, 1)]])
def test_columns_that_overlap_or_leave_gaps_are_refused(places: list[tuple[int, int]]) -> None:
    x = Graph().input("x", (Dim("tokens", 2), 2), DType.F32)
    with pytest.raises(ValueError, match="concat"):
        ops.concat([(x, first, stride) for first, stride in places])


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize(("heads", "size", "dims"), [(1, 2, 2), (3, 10, 6), (4, 64, 64)])
def test_rope(tmp_path: Path, isa: str, heads: int, size: int, dims: int, neox: bool) -> None:
    arrays = {"table": uniform(11, heads * size)}
    frequencies = np.float32(100.0) ** (-np.arange(0, dims, 2, dtype=np.float32) / dims)

    def record(ids: Tensor, w: dict[str, Weight], _: Graph) -> Tensor:
        x = ops.embedding(ids, w["table"]).reshape(heads, size)
        return ops.rope(x, ops.rope_table(ids, Rope(frequencies, neox, 1.25))).reshape(heads * size)

    expected, found = results(tmp_path, arrays, record, 8, isa)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_pair_turns_by_the_coordinate_on_its_axis(backend: str) -> None:
    frequencies = np.linspace(1, 0.01, 5, dtype=np.float32)
    axes = (0, 2, 1, 1, 0)
    opened, graph = open_backend(backend), Graph()
    tokens = Dim("tokens", MAX_TOKENS)
    positions = graph.input("positions", (tokens,), DType.I32)
    coordinates = graph.input("coordinates", (tokens, 3), DType.I32)
    rope = Rope(frequencies, magnitude=1.25, axes=axes)
    graph.output("by position", ops.rope_table(positions, rope))
    graph.output("by coordinates", ops.rope_table(coordinates, rope))
    plan = opened.compile(graph)
    given = np.random.default_rng(3).integers(0, 1000, (7, 3), np.int32)
    found = plan.launch({"positions": given[:, 0], "coordinates": given})
    table = found.rows("by coordinates").reshape(7, 2, 5)
    angles = given[:, axes] * frequencies
    np.testing.assert_allclose(table[:, 0], 1.25 * np.cos(angles), atol=1e-4)
    np.testing.assert_allclose(table[:, 1], 1.25 * np.sin(angles), atol=1e-4)
    alike = np.repeat(given[:, :1], 3, axis=1)
    one = found.rows("by position").copy()
    found = plan.launch({"positions": given[:, 0], "coordinates": alike})
    np.testing.assert_array_equal(found.rows("by coordinates"), one)


@pytest.mark.parametrize("axes", [None, (0, 1), (0, 1, 3)])
def test_a_rope_without_an_axis_for_each_pair_is_refused(axes: tuple[int, ...] | None) -> None:
    coordinates = Graph().input("coordinates", (Dim("tokens", 2), 3), DType.I32)
    with pytest.raises(ValueError, match="rope_table"):
        ops.rope_table(coordinates, Rope(np.ones(3, np.float32), axes=axes))
