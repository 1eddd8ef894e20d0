"""Layers that keep a state for each sequence instead of keys and values."""

from __future__ import annotations

from typing import Any

from chaski.ml.cpu.lowering import Lowering
from chaski.ml.graph import KVBuffer, Tensor

__all__ = [
    "chunked_conv",
    "gated_delta",
    "generalized_delta",
    "pooling",
    "selective_scan",
    "short_conv",
    "ssd",
]


def short_conv(lowering: Lowering, node: Tensor, x: Tensor, segments: Tensor, states: KVBuffer) -> None:
    lowering.call(
        "short_conv",
        {"x": x, "segments": segments, "states": states},
        {"y": lowering.new(node), "states": states},
        dim=lowering.dim(node),
        segments_dim=lowering.dim(segments),
        filter=node.attributes["filter"].T.ravel().tolist(),
    )


def chunked_conv(
    lowering: Lowering, node: Tensor, x: Tensor, segments: Tensor, states: KVBuffer, rows: KVBuffer
) -> None:
    lowering.call(
        "chunked_conv",
        {"x": x, "segments": segments, "states": states, "rows": rows},
        {"y": lowering.new(node), "states": states, "rows": rows},
        dim=lowering.dim(node),
        segments_dim=lowering.dim(segments),
        filter=node.attributes["filter"].T.ravel().tolist(),
    )


def pooling(
    lowering: Lowering,
    node: Tensor,
    values: Tensor,
    scores: Tensor,
    segments: Tensor,
    states: KVBuffer,
    rows: KVBuffer,
) -> None:
    bias = node.attributes["bias"]
    lowering.call(
        "pooling",
        {"values": values, "scores": scores, "segments": segments, "states": states, "rows": rows},
        {"y": lowering.new(node), "states": states, "rows": rows},
        dim=lowering.dim(node),
        segments_dim=lowering.dim(segments),
        overlaps=bias.shape[1] != states.size,
        bias=bias.ravel().tolist(),
    )


def selective_scan(
    lowering: Lowering,
    node: Tensor,
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    segments: Tensor,
    states: KVBuffer,
) -> None:
    lowering.call(
        "selective_scan",
        {"x": x, "dt": dt, "b": b, "c": c, "segments": segments, "states": states},
        {"y": lowering.new(node), "states": states},
        dim=lowering.dim(node),
        segments_dim=lowering.dim(segments),
        a=node.attributes["a"].T.ravel().tolist(),
    )


def generalized_delta(
    lowering: Lowering,
    node: Tensor,
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor,
    states: KVBuffer,
    a: Tensor | None = None,
    b: Tensor | None = None,
) -> None:
    lowering.call(
        "generalized_delta",
        {"r": r, "w": w, "k": k, "v": v, "a": a, "b": b, "segments": segments, "states": states},
        {"y": lowering.new(node), "states": states},
        dim=lowering.dim(node),
        segments_dim=lowering.dim(segments),
        value_size=v.shape[2],
    )


def gated_delta(lowering: Lowering, node: Tensor, *operands: Any) -> None:
    _in_chunks(lowering, node, *operands, tiled=node.attributes["tiled"], skip=[])


def ssd(lowering: Lowering, node: Tensor, *operands: Any) -> None:
    _in_chunks(lowering, node, *operands, tiled=False, skip=node.attributes["d"].tolist())


def _in_chunks(
    lowering: Lowering,
    node: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    segments: Tensor,
    states: KVBuffer,
    keys: KVBuffer,
    values: KVBuffer,
    log_decays: KVBuffer,
    *,
    tiled: bool,
    skip: list[float],
) -> None:
    inputs = {"k": k, "log_decay": log_decay, "segments": segments}
    rows = {"keys": keys, "log_decays": log_decays}
    kept = {"states": states, "values": values}
    arguments = {
        "dim": lowering.dim(node),
        "segments_dim": lowering.dim(segments),
        "tiled": tiled,
    }
    lowering.call("delta_rows", {**inputs, **rows}, rows, before=True, **arguments)
    lowering.call(
        "gated_delta",
        {"q": q, "v": v, "beta": beta, **inputs, **rows, **kept},
        {"y": lowering.new(node), **kept},
        value_size=v.shape[2],
        skip=skip,
        **arguments,
    )
    lowering.call("delta_rows", {**inputs, **rows}, rows, before=False, **arguments)
