"""Several residual streams."""

from __future__ import annotations

from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import Kernel, Lowering, Sizes
from chaski.ml.graph import Tensor, width

__all__ = ["mix_streams", "sinkhorn"]

_ROWS = 4  # of a thread block, with 16 threads each


def mix_streams(lowering: Lowering, node: Tensor, x: Tensor, weights: Tensor) -> None:
    arguments = (x, lowering.count(node), weights, *weights.shape[1:], x.shape[2], lowering.new(node))
    lowering.for_each("streams", "mix_streams", node, width(node), *arguments)


def sinkhorn(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    dim = lowering.dim(node)

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(Program("streams"), "sinkhorn", (-(-sizes[dim] // _ROWS), 1, 1), 16 * _ROWS)

    iterations, eps = node.attributes["iterations"], float(node.attributes["eps"])
    lowering.step(choose, x, lowering.count(node), x.shape[1], iterations, eps, lowering.new(node))
