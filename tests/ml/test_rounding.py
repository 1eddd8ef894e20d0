"""The values of a graph that are rounded to int8, and their blocks, are the same on all backends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaski import _native
from chaski.formats.quant import QuantType
from chaski.ml import moe_ops, ops
from chaski.ml.cpu.operations import OPERATIONS as CPU_OPERATIONS
from chaski.ml.cuda.operations import OPERATIONS as CUDA_OPERATIONS
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.products import PRODUCTS
from chaski.ml.rounding import Rounding, product_types

TOKENS = Dim("tokens", 4)
EXPERTS, CHOSEN = 4, 2


class Recorded:
    """A graph with a value (tokens, 512), and the types of the matrices that multiply it."""

    def __init__(self) -> None:
        self.graph = Graph()
        x = self.graph.input("x", (TOKENS, 2, 256), DType.F32)
        self.value = self.graph.record("scale", (x,), x.shape, factor=2.0)
        self.rows = self.value.reshape(512)
        self.types: dict[Weight, QuantType] = {}

    def matrix(self, type: QuantType, *shape: int) -> Weight:
        weight = Weight(shape)
        self.types[weight] = type
        return weight

    def output(self, node: Tensor) -> Tensor:
        self.graph.output(str(len(self.graph.outputs)), node)
        return node

    def rounding(self) -> Rounding:
        return Rounding(self.graph, self.types.__getitem__)

    def dispatched(self) -> tuple[Tensor, Tensor]:
        """Return the rows of the value, sorted by expert, and their groups."""
        logits = self.graph.input("logits", (TOKENS, EXPERTS), DType.F32)
        groups = moe_ops.group_by_expert(moe_ops.router(logits, CHOSEN, moe_ops.Gating.SOFTMAX), EXPERTS)
        return moe_ops.dispatch(self.rows, groups), groups


def linear(recorded: Recorded, type: QuantType) -> Tensor:
    return ops.linear(recorded.rows, recorded.matrix(type, 64, 512))


def first_outputs(recorded: Recorded, type: QuantType) -> Tensor:
    return ops.first_outputs(recorded.rows, recorded.matrix(type, 512, 512), 256)


def experts(recorded: Recorded, type: QuantType) -> Tensor:
    rows, groups = recorded.dispatched()
    return moe_ops.expert_linear(rows, groups, recorded.matrix(type, EXPERTS, 64, 512))


@pytest.mark.parametrize("record", [linear, first_outputs, experts])
@pytest.mark.parametrize(
    ("type", "block"), [(QuantType.Q8_0, 32), (QuantType.Q6_K, 256), (QuantType.F16, 0), (QuantType.BF16, 0)]
)
def test_quantized_matrices_round_what_only_they_read(
    record: Callable[[Recorded, QuantType], Tensor], type: QuantType, block: int
) -> None:
    recorded = Recorded()
    product = recorded.output(record(recorded, type))
    rounding = recorded.rounding()
    assert rounding.blocks().get(recorded.value, 0) == rounding.blocks().get(recorded.rows, 0) == block
    assert (product in rounding.products) is bool(block)
    assert (recorded.value in rounding.floats) is not bool(block)
    assert rounding.columns.get(recorded.value) == (512 if block else None)


@pytest.mark.parametrize("type", [QuantType.Q8_0, QuantType.Q4_K])
def test_a_value_that_another_operation_reads_has_floats_too(type: QuantType) -> None:
    recorded = Recorded()
    recorded.output(linear(recorded, type))
    recorded.output(ops.silu(recorded.value))
    rounding = recorded.rounding()
    assert recorded.value not in rounding.blocks()
    assert recorded.value in rounding.floats
    assert rounding.columns[recorded.value] == 512


def test_an_output_is_read_as_floats() -> None:
    recorded = Recorded()
    recorded.output(linear(recorded, QuantType.Q8_0))
    recorded.output(recorded.rows)
    assert not recorded.rounding().blocks().keys() & {recorded.value, recorded.rows}


def test_experts_of_two_types_read_both_forms_of_their_rows() -> None:
    recorded = Recorded()
    rows, groups = recorded.dispatched()
    for type in (QuantType.Q8_0, QuantType.F16):
        recorded.output(moe_ops.expert_linear(rows, groups, recorded.matrix(type, EXPERTS, 64, 512)))
    rounding = recorded.rounding()
    assert rows in rounding.dispatched
    for value in (rows, recorded.rows, recorded.value):
        assert value in rounding.floats
        assert value in rounding.columns


def test_rows_that_are_sorted_for_more_than_products_are_rounded_after_sorting() -> None:
    recorded = Recorded()
    rows, groups = recorded.dispatched()
    recorded.output(moe_ops.expert_linear(rows, groups, recorded.matrix(QuantType.Q8_0, EXPERTS, 64, 512)))
    recorded.output(moe_ops.combine(rows, groups))
    rounding = recorded.rounding()
    assert rows not in rounding.dispatched
    assert rows in rounding.columns
    assert recorded.value not in rounding.columns


def test_one_matrix_with_super_blocks_decides_for_all_rows_of_whole_ones() -> None:
    recorded = Recorded()
    recorded.output(linear(recorded, QuantType.Q8_0))
    short = recorded.graph.input("short", (TOKENS, 288), DType.F32)
    recorded.output(ops.linear(short, recorded.matrix(QuantType.Q8_0, 64, 288)))
    assert recorded.rounding().blocks() == {recorded.value: 32, recorded.rows: 32, short: 32}
    recorded.output(linear(recorded, QuantType.Q4_K))
    assert recorded.rounding().blocks() == {recorded.value: 256, recorded.rows: 256, short: 32}


def test_a_piece_rounds_as_the_larger_graph_does() -> None:
    recorded = Recorded()
    recorded.output(linear(recorded, QuantType.Q8_0))
    recorded.graph.product_types = frozenset({QuantType.Q3_K, QuantType.MXFP4_INTERLEAVED})
    assert recorded.rounding().in_super_blocks
    assert product_types(recorded.graph, recorded.types.__getitem__) == {
        QuantType.Q8_0,
        QuantType.Q3_K,
        QuantType.MXFP4_INTERLEAVED,
    }


@pytest.mark.parametrize("operations", [CPU_OPERATIONS, CUDA_OPERATIONS], ids=["cpu", "cuda"])
def test_every_product_has_kernels(operations: dict[str, object]) -> None:
    # A GPU multiplies the heads apart, by `with_heads_apart`.
    assert operations.keys() >= PRODUCTS.keys() - {"head_linear"}
    assert "head_linear" in CPU_OPERATIONS


def test_python_and_the_native_core_call_the_same_types_quantized() -> None:
    for type in _native.matrix_types():
        assert _native.is_quantized(int(type)) is (QuantType(type).block_size > 1)
