"""Matching of a LoRA adapter to a model: which of the model's matrices each pair changes."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.errors import AdapterError
from chaski.formats.adapter import AdapterFile, LoraPair, check_shapes
from chaski.ml.backend import LoraMatrices
from chaski.ml.graph import Weight
from chaski.model.weights import HasWeights

__all__ = ["match_adapter"]


def match_adapter(
    adapter: AdapterFile, architecture: str, model: HasWeights, numbers: Mapping[Weight, int]
) -> dict[int, LoraMatrices]:
    """Return the pairs of an adapter by the number of the matrix that each changes; see `Program.adapted`.

    A pair for a tensor that contains the rows of several matrices is split. Raises AdapterError if the
    adapter belongs to another model or changes a tensor that adapters cannot change.
    """
    if adapter.architecture != architecture:
        raise AdapterError(
            f"{adapter.path}: the adapter is for architecture {adapter.architecture!r:.80}, but the model is "
            f"{architecture!r:.80}; load the model that it was trained on"
        )
    weights = dict(model.weights())
    joined = dict(model.joined_weights())
    found: dict[int, LoraMatrices] = {}
    for name, pair in adapter.tensors.items():
        parts = joined.get(name, [])
        # A joined tensor may share its name with one of its parts; the number of rows shows which one it is.
        if name in weights and pair.b.shape[0] != sum(weight.shape[0] for _, weight in parts):
            parts = [(name, weights[name])]
        if not parts:
            raise AdapterError(
                f"{adapter.path}: tensor {pair.a.name} changes {name}, which the model lacks; load "
                "the model that the adapter was trained on"
            )
        _check(adapter, name, pair, [weight for _, weight in parts], numbers)
        row = 0
        for _, weight in parts:
            b = pair.b.part(pair.b.name, 0, slice(row, row + weight.shape[0])) if len(parts) > 1 else pair.b
            found[numbers[weight]] = LoraMatrices(pair.a, b, pair.scale(adapter.alpha))
            row += weight.shape[0]
    return found


def _check(
    adapter: AdapterFile, name: str, pair: LoraPair, weights: list[Weight], numbers: Mapping[Weight, int]
) -> None:
    shape = weights[0].shape
    if len(shape) == 2:
        shape = sum(weight.shape[0] for weight in weights), shape[1]
    check_shapes(adapter.path, name, pair, shape)
    if any(weight not in numbers for weight in weights):
        raise AdapterError(
            f"{adapter.path}: tensor {pair.a.name} changes {name}; adapters for embeddings, or for tensors "
            "that no token's row is multiplied with, are not supported; train the adapter without that module"
        )
