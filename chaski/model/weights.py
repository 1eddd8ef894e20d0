"""Binding a file's tensors to a model's weights by name, strictly both ways."""

from __future__ import annotations

from dataclasses import replace

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile, TensorInfo
from chaski.formats.quant import dequantize
from chaski.ml.backend import Backend, Progress
from chaski.ml.graph import Weight
from chaski.model.registry import Model

__all__ = ["bind_weights", "match_weights", "place_weights"]


def bind_weights(model: Model, file: GGUFFile, backend: Backend, progress: Progress) -> None:
    """Fill every weight of `model` from `file`: place them, and load them."""
    place_weights(model, file, backend)
    backend.load(progress)


def place_weights(model: Model, file: GGUFFile, backend: Backend, projector: GGUFFile | None = None) -> None:
    """Give every weight of `model` its place in `backend`, to be loaded from `file` or its `projector`.

    Raises what `match_weights` does.
    """
    pairs = match_weights(model, file, projector)
    for weight, info in pairs:
        if weight.host:
            weight.array = dequantize(info.data, info.type, info.shape)
    backend.place([(weight, info) for weight, info in pairs if not weight.host])


def match_weights(
    model: Model, file: GGUFFile, projector: GGUFFile | None = None
) -> list[tuple[Weight, TensorInfo]]:
    """Return every weight of `model` with its tensor, by names and shapes; no tensor is read.

    Raises ModelError when a required tensor is missing, a shape differs, or a tensor is left over: a model
    that does not use all of its file would give wrong text.
    """
    tensors = dict(file.tensors)
    _split_gates(tensors)
    _split_qkv(tensors, model)
    if projector is not None:
        twice = sorted(tensors.keys() & projector.tensors.keys())
        if twice:
            raise ModelError(f"{projector.path}: tensor {twice[0]} is in {file.path} as well")
        tensors |= projector.tensors
    return _match(model, file, tensors)


def _split_gates(tensors: dict[str, TensorInfo]) -> None:
    """Put gate and up of experts in the place of the one tensor that llama.cpp's newer files have of both.

    Each expert's gate rows come first.
    """
    for name in [name for name in tensors if ".ffn_gate_up_exps." in name]:
        if len(tensors[name].shape) > 1 and tensors[name].shape[1] % 2 == 0:
            whole = tensors.pop(name)
            half = whole.shape[1] // 2
            for kind, rows in (("gate", slice(half)), ("up", slice(half, None))):
                part = name.replace("_gate_up_", f"_{kind}_")
                tensors[part] = whole.part(part, 1, rows)


def _split_qkv(tensors: dict[str, TensorInfo], model: Model) -> None:
    """Put query, key and value in the place of the one tensor that some files have of all three."""
    joined_names = [name for name in tensors if ".attn_qkv." in name]
    shapes = {name: weight.shape for name, weight in model.weights()} if joined_names else {}
    for joined in [name for name in joined_names if name not in shapes]:
        names = [joined.replace(".attn_qkv.", f".attn_{part}.") for part in "qkv"]
        counts = [shapes[name][0] for name in names if name in shapes]
        if len(counts) == len(names) and sum(counts) == tensors[joined].shape[0]:
            whole, begin = tensors.pop(joined), 0
            for name, count in zip(names, counts, strict=True):
                tensors[name] = whole.part(name, 0, slice(begin, begin + count))
                begin += count


def _match(model: Model, file: GGUFFile, tensors: dict[str, TensorInfo]) -> list[tuple[Weight, TensorInfo]]:
    pairs = []
    for name, weight in model.weights():
        info = tensors.pop(name, None)
        weight.name = name
        if info is not None:
            pairs.append((weight, _checked(info, weight)))
        elif not weight.optional:
            raise ModelError(f"{file.path}: tensor {name} {weight.shape} is missing")
    if tensors:
        names = ", ".join(sorted(tensors)[:5])
        more = f" and {len(tensors) - 5} more" if len(tensors) > 5 else ""
        raise ModelError(
            f"{file.path}: architecture {file.architecture!r:.80} has no use for tensors {names}{more}"
        )
    return pairs


def _checked(info: TensorInfo, weight: Weight) -> TensorInfo:
    """The tensor in the shape of the weight."""
    wanted = weight.stored or weight.shape
    if info.shape not in (wanted, weight.shape):
        raise ModelError(
            f"{info.path}: tensor {info.name} has shape {info.shape}, but the metadata asks for {wanted}"
        )
    return info if info.shape == weight.shape else replace(info, shape=weight.shape)
