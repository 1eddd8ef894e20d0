"""Devices of the foreign backend, each with its own memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from chaski.ml.backend import Device, DeviceMemory, Memory

__all__ = ["WORKSPACE", "Devices", "Holding", "layer_of"]

WORKSPACE = 4096
"""Bytes that a plan takes on each device."""


def layer_of(tensor: str) -> int | None:
    """Return the layer of a tensor in a file."""
    found = re.match(r"blk\.(\d+)\.", tensor)
    return int(found[1]) if found else None


class Devices:
    """Devices by name with their bytes of memory. Of several devices, all except the first have layers."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self.held: Counter[str] = Counter()

    @property
    def names(self) -> list[str]:
        return list(self._sizes)

    def listed(self) -> list[Device]:
        return [
            Device(name, "made up", 1, (), size, size - self.held[name]) for name, size in self._sizes.items()
        ]


class Holding:
    """The memory of one backend on the devices, which is taken when it loads."""

    def __init__(self, devices: Devices) -> None:
        self.num_layers = 1
        self.weights: Counter[str] = Counter()
        self.cache: Counter[str] = Counter()
        self.plans: Counter[str] = Counter()
        self._devices = devices
        self._taken: Counter[str] = Counter()

    def device(self, layer: int | None) -> str:
        """Return the device of a layer: each device has the same number of consecutive layers."""
        first, *others = self._devices.names
        if layer is None or not others:
            return first
        return others[layer * len(others) // self.num_layers]

    def add_workspace(self) -> None:
        self.plans.update(dict.fromkeys(self._devices.names, WORKSPACE))

    def memory(self) -> Memory:
        return Memory(
            tuple(
                DeviceMemory(name, self.weights[name], self.cache[name], self.plans[name])
                for name in self._devices.names
            )
        )

    def take(self) -> None:
        self._taken = Counter({held.device: held.total for held in self.memory().devices})
        self._devices.held += self._taken

    def give_back(self) -> None:
        self._devices.held -= self._taken
        self._taken = Counter()
