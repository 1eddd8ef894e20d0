"""Binding a file's tensors to a model's weights by name, strictly both ways."""

from __future__ import annotations

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile, TensorInfo
from chaski.formats.quant import dequantize
from chaski.ml.backend import Backend, Progress
from chaski.ml.graph import Weight
from chaski.model.registry import Model

__all__ = ["bind_weights", "place_weights"]


def bind_weights(model: Model, file: GGUFFile, backend: Backend, progress: Progress) -> None:
    """Fill every weight of `model` from `file`: place them, and load them."""
    place_weights(model, file, backend)
    backend.load(progress)


def place_weights(model: Model, file: GGUFFile, backend: Backend) -> None:
    """Give every weight of `model` its place in `backend`, to be loaded from `file`.

    Raises ModelError when a required tensor is missing, a shape differs, or a tensor is left over: a model
    that does not use all of its file would give wrong text.
    """
    pairs = _match(model, file)
    for weight, info in pairs:
        if weight.host:
            weight.array = dequantize(info.data, info.type, info.shape)
    backend.place([(weight, info) for weight, info in pairs if not weight.host])


def _match(model: Model, file: GGUFFile) -> list[tuple[Weight, TensorInfo]]:
    pairs = []
    unused = dict(file.tensors)
    for name, weight in model.weights():
        weight.name = name
        info = unused.pop(name, None)
        if info is None:
            if not weight.optional:
                raise ModelError(f"{file.path}: tensor {name} {weight.shape} is missing")
        elif info.shape != weight.shape:
            raise ModelError(
                f"{file.path}: tensor {name} has shape {info.shape}, but the metadata asks for {weight.shape}"
            )
        else:
            pairs.append((weight, info))
    if unused:
        names = ", ".join(sorted(unused)[:5])
        more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
        raise ModelError(
            f"{file.path}: architecture {file.architecture!r} has no use for tensors {names}{more}"
        )
    return pairs
