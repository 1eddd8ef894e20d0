"""Binding of a file's tensors to a model's weights by name; both sides must match completely."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Protocol

from chaski.errors import ModelError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import GGUFFile, TensorInfo
from chaski.ml.backend import Backend, ProgressCallback
from chaski.ml.graph import Weight
from chaski.model.attached import AttachedDraft
from chaski.model.registry import Model

__all__ = ["bind_weights", "match_weights", "place_weights"]


def bind_weights(model: Model, file: GGUFFile, backend: Backend, progress: ProgressCallback) -> None:
    """Place and load every weight of `model` from `file`."""
    place_weights(model, file, backend)
    backend.load(progress)


class HasWeights(Protocol):
    """A model, or part of one, with the names of its weights; see `Model`."""

    def weights(self) -> Iterator[tuple[str, Weight]]: ...

    def joined_weights(self) -> Iterator[tuple[str, list[tuple[str, Weight]]]]: ...

    def unused_names(self) -> Iterator[str]: ...


def place_weights(
    model: HasWeights,
    file: GGUFFile,
    backend: Backend,
    projector: GGUFFile | None = None,
    draft: AttachedDraft | None = None,
) -> None:
    """Assign every weight of `model` a place in `backend`, to be loaded from `file` or its `projector`.

    The weights of an attached draft come after them and are loaded from the draft's file.

    Raises the errors of `match_weights`.
    """
    pairs = match_weights(model, file, projector)
    if draft is not None:
        pairs += match_weights(draft, draft.file)
    for weight, info in pairs:
        if weight.host:
            weight.array = dequantize(info.data, info.type, info.shape)
    backend.place([(weight, info) for weight, info in pairs if not weight.host])


def match_weights(
    model: HasWeights, file: GGUFFile, projector: GGUFFile | None = None
) -> list[tuple[Weight, TensorInfo]]:
    """Return every weight of `model` with its tensor, matched by name and shape; no tensor is read.

    Raises ModelError if a required tensor is missing, a shape differs, or a tensor is left over: a model
    that does not use its whole file would give wrong text.
    """
    unused = tuple(model.unused_names())
    tensors = {name: info for name, info in file.tensors.items() if not name.startswith(unused)}
    if projector is not None:
        twice = sorted(tensors.keys() & projector.tensors.keys())
        if twice:
            raise ModelError(
                f"{projector.path}: {file.path} also contains tensor {twice[0]}; load it without a projector"
            )
        tensors |= {name: info for name, info in projector.tensors.items() if not name.startswith(unused)}
    scales = _take_scales(model, tensors)
    _split_joined(model, tensors)
    return _match(model, file, tensors) + scales


def _take_scales(model: HasWeights, tensors: dict[str, TensorInfo]) -> list[tuple[Weight, TensorInfo]]:
    """Give matrices the scales next to them in the file, such as `blk.0.attn_q.scale` (1,), and return these.

    Files with NVFP4 have them, and scales for inputs in that type, which are not used. A stack of matrices
    has a scale for each. If a tensor joins several stacks, the scale next to its last part belongs to all.
    """
    weights = dict(model.weights())
    matrices = {name: [weight] for name, weight in weights.items() if len(weight.shape) in (2, 3)}
    for whole, parts in model.joined_weights():
        matrices[whole] = [weight for _, weight in parts]
        if whole in tensors:
            matrices[parts[-1][0]] = matrices[whole]
    pairs = []
    for name, info in list(tensors.items()):
        matrix, _, kind = name.rpartition(".")
        own = matrices.get(f"{matrix}.weight", [])
        if kind == "input_scale" and own:
            del tensors[name]
        elif kind == "scale" and own and name not in weights:
            is_stack = len(own[0].shape) == 3
            has_bias = is_stack and f"{matrix}.bias" in tensors
            if has_bias or info.shape != (own[0].shape[:1] if is_stack else (1,)):
                continue
            scale = Weight(info.shape, host=not is_stack, name=name)
            pairs.append((scale, tensors.pop(name)))
            for weight in own:
                weight.scale = scale
    return pairs


def _split_joined(model: HasWeights, tensors: dict[str, TensorInfo]) -> None:
    """Replace each joined tensor by its parts, if they fill it: rows, or the matrices of a stack."""
    for whole, parts in model.joined_weights():
        info = tensors.get(whole)
        if info is None or any(tensors.get(name, info) is not info for name, _ in parts):
            continue
        if info.shape == (len(parts), *parts[0][1].shape):
            del tensors[whole]
            for index, (name, weight) in enumerate(parts):
                matrix = info.part(name, 0, slice(index, index + 1))
                tensors[name] = replace(matrix, shape=weight.shape)
            continue
        counts = [_rows(name, weight.shape) for name, weight in parts]
        if sum(counts) == _rows(whole, info.shape):
            del tensors[whole]
            for (name, _), end, count in zip(parts, accumulate(counts), counts, strict=True):
                tensors[name] = info.part(name, _row_axis(name, info.shape), slice(end - count, end))


def _rows(name: str, shape: tuple[int, ...]) -> int:
    return shape[_row_axis(name, shape)]


def _row_axis(name: str, shape: tuple[int, ...]) -> int:
    """Return the axis of rows: in matrices the one before columns, in a bias the only one."""
    return len(shape) - 2 if name.endswith(".weight") and len(shape) > 1 else len(shape) - 1


def _match(
    model: HasWeights, file: GGUFFile, tensors: dict[str, TensorInfo]
) -> list[tuple[Weight, TensorInfo]]:
    pairs = []
    for name, weight in model.weights():
        info = tensors.pop(name, None)
        weight.name = name
        if info is not None:
            weight.type = info.type
            pairs.append((weight, _checked(info, weight)))
        elif weight.constant is not None:
            pairs.append((weight, TensorInfo.filled(name, weight.shape, weight.constant, file.path)))
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
    """Return the tensor in the shape of the weight."""
    wanted = weight.stored or weight.shape
    forms = {_without_ones(weight.shape), _without_ones(wanted)}
    if info.shape != wanted and _without_ones(info.shape) not in forms:
        raise ModelError(
            f"{info.path}: tensor {info.name} has shape {info.shape}, but the metadata requires {wanted}"
        )
    return info if info.shape == weight.shape else replace(info, shape=weight.shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape without outer dimensions of 1, with which some converters write vectors."""
    first = next((index for index, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]
