"""`Layout`: the devices of a model's matrices and caches, as the backends place them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.ml import split_layers
from chaski.ml.backend import HOST, GPUOptions
from chaski.runner.fitting.work import Work

__all__ = ["Layout", "Slots"]


class Slots(Struct, frozen=True):
    """Experts of a stack that a GPU has as well: the share of all of them that has slots there."""

    device: str
    share: float


class Layout(Struct, frozen=True):
    """The device of each matrix by its name, and of each layer's keys and values as in `Work.contexts`.

    slots  by name of a stack: the slots that a GPU has for some of its experts
    """

    weights: Mapping[str, str]
    contexts: Sequence[str]
    slots: Mapping[str, Slots] = {}

    @classmethod
    def of(
        cls, work: Work, file: GGUFFile, place: GPUOptions | None, available: Mapping[str, int]
    ) -> Layout | None:
        """Return the layout of a place; None if devices share every matrix.

        available: free bytes of each device, in proportion to which devices share layers
        """
        devices = [HOST] if place is None else place.devices
        if len(devices) == 1:
            return cls(dict.fromkeys(file.tensors, devices[0]), [devices[0]] * len(work.contexts))
        assert place is not None
        if place.split != "layers":
            return None
        split = split_layers(file.tensors, [available[name] for name in devices], *_split(place, devices))
        return cls(
            {name: devices[split.member_of(name)] for name in file.tensors},
            [devices[split.member_of_layer(layer)] for layer in range(len(work.contexts))],
            {
                info.name: Slots(devices[layer.gpu], layer.slots / layer.experts)
                for layer in split.tiers.layers
                for _, info in layer.tensors
            },
        )

    def bytes_on(self, work: Work) -> dict[str, int]:
        """Return the bytes of weights on each device."""
        found: dict[str, int] = {}
        for matrix in work.matrices:
            device = self.weights[matrix.name]
            found[device] = found.get(device, 0) + matrix.num_bytes
        return found

    def contents(self, work: Work, device: str) -> str:
        """Return in words what a device holds."""
        return ", ".join(self._contents(work, device))

    def _contents(self, work: Work, device: str) -> Iterator[str]:
        layers: dict[bool, set[int]] = {True: set(), False: set()}
        outside = []
        for matrix in work.matrices:
            if self.weights[matrix.name] != device:
                continue
            if matrix.layer is None:
                outside.append(matrix.name)
            else:
                layers[matrix.is_expert].add(matrix.layer)
        experts, others = layers[True], layers[False]
        whole = {layer for layer in others if not work.experts or layer in experts}
        if whole:
            yield f"{_numbered(whole)} of {work.layers} layers"
        if without := others - whole:
            yield f"{_numbered(without)} of {work.layers} layers without their experts"
        if alone := experts - others:
            yield f"the experts of {_numbered(alone)} of {work.layers} layers"
        hot = {m.layer: self.slots[m.name] for m in work.matrices if m.name in self.slots}
        if shares := [slots.share for slots in hot.values() if slots.device == device]:
            yield f"{shares[0] * work.experts:.0f} of {work.experts} experts of {len(shares)} layers as well"
        if any(name.startswith("token_embd") for name in outside):
            yield "embeddings"
        if any(name.startswith("output.") for name in outside):
            yield "output"


def _split(
    place: GPUOptions, devices: Sequence[str]
) -> tuple[Sequence[float] | None, int | None, Sequence[tuple[str, int]], int]:
    """Return shares, trailing layers, overrides and slots, as `chaski.ml.cuda.layout` chooses them."""
    is_on_cpu = HOST in devices
    shares = None if place.shares is None else (*([1.0] if is_on_cpu else ()), *place.shares)
    layers = sys.maxsize if place.layers is None and is_on_cpu else place.layers
    overrides = [(each.pattern, devices.index(each.device)) for each in place.overrides]
    return shares, layers, overrides, place.expert_slots


def _numbered(layers: set[int]) -> str:
    return str(len(layers))
