"""Layers that keep a state for each sequence instead of keys and values."""

from __future__ import annotations

from chaski.ml.cpu.lowering import Lowering
from chaski.ml.graph import KVBuffer, Tensor

__all__ = ["short_conv"]


def short_conv(lowering: Lowering, node: Tensor, x: Tensor, segments: Tensor, states: KVBuffer) -> None:
    y = lowering.new(node)
    lowering.call(
        "short_conv",
        (lowering.buffer(x), lowering.buffer(segments), states),
        (y, states),
        dim=lowering.dim(node),
        segments_dim=lowering.dim(segments),
        x=lowering.buffer(x),
        filter=node.attributes["filter"].T.ravel().tolist(),
        segments=lowering.buffer(segments),
        states=states.handle,
        y=y,
    )
