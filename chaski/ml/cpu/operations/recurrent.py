"""Layers that keep a state for each sequence instead of keys and values."""

from __future__ import annotations

from chaski.ml.cpu.lowering import Lowering
from chaski.ml.graph import KVBuffer, Tensor

__all__ = ["short_conv"]


def short_conv(lowering: Lowering, node: Tensor, x: Tensor, segments: Tensor, states: KVBuffer) -> None:
    lowering.call(
        "short_conv",
        {"x": x, "segments": segments, "states": states},
        {"y": lowering.new(node), "states": states},
        dim=lowering.dim(node),
        segments_dim=lowering.dim(segments),
        filter=node.attributes["filter"].T.ravel().tolist(),
    )
