"""The table of elementwise operations: every one on every instruction set against its declared formula."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from chaski import _native
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.elementwise import ELEMENTWISE, Elementwise
from chaski.ml.graph import Dim, DType, Graph

RNG = np.random.default_rng(11)
VALUES = {"cap": 1.5, "alpha": 1.702, "limit": 2.5, "factor": 0.75, "low": -0.5, "high": 1.25}
"""The test parameters of operations by name."""

F32 = npt.NDArray[np.float32]


@pytest.fixture(params=ELEMENTWISE)
def operation(request: pytest.FixtureRequest) -> Elementwise:
    return ELEMENTWISE[request.param]


def computed(operation: Elementwise, operands: list[F32], isa: str, threads: int = 2) -> F32:
    """Return the native kernel's result for these rows."""
    graph = Graph()
    shape = (Dim("rows", 16), operands[0].shape[1])
    names = [f"x{index}" for index in range(len(operands))]
    tensors = [graph.input(name, shape, DType.F32) for name in names]
    graph.output("y", operation(*tensors, **{name: VALUES[name] for name in operation.parameters}))
    plan = open_backend("cpu", CPUOptions(threads=threads, isa=isa)).compile(graph)
    return plan.launch(dict(zip(names, operands, strict=True))).rows("y").copy()


def defined(operation: Elementwise, operands: list[F32]) -> F32:
    return operation.formula(*operands, **{name: VALUES[name] for name in operation.parameters})


def test_both_tables_have_the_same_operations_with_as_many_operands_and_parameters() -> None:
    declared = {name: (len(op.operands), len(op.parameters)) for name, op in ELEMENTWISE.items()}
    assert _native.elementwise_operations() == declared


@pytest.mark.parametrize("size", [1, 37, 2500])
@pytest.mark.parametrize("extent", [1e-3, 4.0, 60.0])
def test_an_operation_is_its_formula(operation: Elementwise, isa: str, size: int, extent: float) -> None:
    rows = [
        (RNG.standard_normal((9, size)) * extent).clip(-80, 80).astype(np.float32) for _ in operation.operands
    ]
    expected = defined(operation, rows)
    assert expected.dtype == np.float32
    # tanh of small x and Φ of very negative x are exact to the rounding of 1, times their factor
    allowed = 3e-6 * np.abs(expected) + 4e-7 * np.maximum(np.abs(rows), 1).prod(axis=0)
    assert (np.abs(computed(operation, rows, isa) - expected) <= allowed).all()


def test_instruction_sets_and_threads_give_the_same_bits(operation: Elementwise) -> None:
    rows = [(RNG.standard_normal((9, 519)) * 20).astype(np.float32) for _ in operation.operands]
    results = [computed(operation, rows, isa, threads) for isa in _native.isa_names() for threads in (1, 3)]
    assert len({result.tobytes() for result in results}) == 1


def test_softplus_neither_overflows_nor_cancels(isa: str) -> None:
    x = np.array([[-1000, -80, -20, -1, -0.0, 0, 1e-3, 1, 20, 1000, 3e38, np.inf, -np.inf]], np.float32)
    with np.errstate(over="ignore"):
        exact = np.logaddexp(0, x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(computed(ops.softplus, [x], isa), exact, rtol=4e-7)


@pytest.mark.parametrize("name", ["exp", "sigmoid", "softplus", "relu", "silu", "clamp"])
def test_a_nan_stays_one(name: str, isa: str) -> None:
    found = computed(ELEMENTWISE[name], [np.array([[1.0, np.nan, -1.0]], np.float32)], isa)
    assert np.isnan(found).tolist() == [[False, True, False]]


def test_exp_ends_where_its_declaration_says(isa: str) -> None:
    x = np.array([[-1000, -104, 0, 1000]], np.float32)
    np.testing.assert_allclose(computed(ops.exp, [x], isa), [[0, 0, 1, np.exp(np.float32(88.37))]], rtol=1e-6)


def test_operands_that_do_not_fit_are_refused() -> None:
    graph = Graph()
    rows = Dim("rows", 2)
    x, wide = graph.input("x", (rows, 3), DType.F32), graph.input("wide", (rows, 4), DType.F32)
    with pytest.raises(TypeError, match="swiglu takes gate, up"):
        ops.swiglu(x)
    with pytest.raises(TypeError, match="softcap takes x, cap"):
        ops.softcap(x, limit=3.0)
    with pytest.raises(ValueError, match="swiglu: operands of shapes"):
        ops.swiglu(x, wide)


def test_an_unknown_operation_or_a_wrong_number_of_operands_is_refused_by_the_native_plan() -> None:
    pool = _native.ThreadPool(1)
    picks = _native.VariantPicks("auto")
    plan = _native.Plan(pool, "auto", picks, 1024, ["rows"], [2], False)
    with pytest.raises(ValueError, match="no operation cosine"):
        plan.elementwise("cosine", 0, 4, [0], [], 0, None, 4)
    with pytest.raises(ValueError, match="swiglu: not its number of operands"):
        plan.elementwise("swiglu", 0, 4, [0], [], 0, None, 4)
