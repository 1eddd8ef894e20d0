"""`GPUWishes`: the options of a user on GPUs, and the places of a model that they allow, the best first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from chaski.env import Environment
from chaski.errors import OptionError
from chaski.ml.backend import Device, GPUOptions

__all__ = ["GPUWishes", "checked_split"]


class GPUWishes(Struct, frozen=True):
    """The options of a user on GPUs. None and empty leave a choice to the memory that the GPUs have.

    num_gpu  number of trailing layers on GPUs, counting the output as one
    main_gpu  the number of the GPU that has the model where one is enough
    tensor_split  how much of the model each GPU takes, in the driver's order
    n_cpu_moe  number of leading layers whose experts are on the processor
    split  `layers` or `rows`, where several GPUs have all of a model
    spread  several GPUs share a model even if one GPU has room for it
    spared  bytes of each GPU that stay free
    """

    num_gpu: int | None = None
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] = ()
    n_cpu_moe: int | None = None
    split: str = "layers"
    spread: bool = False
    spared: int = 0

    @classmethod
    def of(
        cls,
        num_gpu: int | None,
        main_gpu: int | None,
        tensor_split: Sequence[float] | None,
        n_cpu_moe: int | None = None,
    ) -> Self:
        """Fill in options that are None from the environment. Raises OptionError for invalid options."""
        environment = Environment.read()
        if n_cpu_moe is not None and n_cpu_moe < 0:
            raise OptionError(f"n_cpu_moe = {n_cpu_moe} must be at least 0")
        num_gpu = environment.num_gpu if num_gpu is None else num_gpu
        return cls(
            None if num_gpu is None or num_gpu < 0 else num_gpu,
            environment.main_gpu if main_gpu is None else main_gpu,
            environment.tensor_split if tensor_split is None else checked_split(tensor_split),
            environment.n_cpu_moe if n_cpu_moe is None else n_cpu_moe,
            environment.split,
            environment.sched_spread,
            environment.gpu_overhead,
        )

    def whole(self, gpus: Sequence[Device], num_layers: int) -> Sequence[GPUOptions]:
        """Return the places for all of a model with that many layers, the best first.

        Experts that the user wants on the processor are there.

        Raises OptionError for no such GPU.
        """
        together = _on_at_most(num_layers, self.together(gpus))
        if self.tensor_split or (self.spread and len(gpus) > 1):
            return [self.with_experts(together, self.n_cpu_moe or 0)]
        main = self.main_gpu
        if main is None:
            main = _number(max(gpus, key=lambda gpu: gpu.available_bytes))
        alone = GPUOptions((main,), spared=self.spared)
        places = [alone, together] if len(gpus) > 1 else [alone]
        return [self.with_experts(place, self.n_cpu_moe or 0) for place in places]

    def together(self, gpus: Sequence[Device]) -> GPUOptions:
        """Return a place on all GPUs. Raises OptionError."""
        numbers = tuple(map(_number, gpus))
        if self.main_gpu not in (None, *numbers):
            raise OptionError(f"main_gpu = {self.main_gpu} must be one of the GPUs here: {_listed(numbers)}")
        shares = None
        if self.tensor_split:
            if len(self.tensor_split) > len(gpus):
                raise OptionError(
                    f"tensor_split has shares of {len(self.tensor_split)} GPUs; there are {_listed(numbers)}"
                )
            given = [(n, share) for n, share in zip(numbers, self.tensor_split, strict=False) if share]
            numbers, shares = tuple(n for n, _ in given), tuple(share for _, share in given)
        return GPUOptions(numbers, shares=shares, split=self.split, spared=self.spared)

    def some(self, gpus: Sequence[Device], layers: int) -> Sequence[GPUOptions]:
        """Return the places for that many layers, the best first: on the last of several GPUs."""
        return [replace(place, layers=layers, split="layers") for place in self.whole(gpus, len(gpus))]

    @staticmethod
    def with_experts(place: GPUOptions, layers: int) -> GPUOptions:
        """Return a place with the experts of that many leading layers on the processor."""
        return replace(place, cpu_experts=layers, split="layers") if layers else place


def checked_split(shares: Sequence[float]) -> tuple[float, ...]:
    """Return shares of GPUs. Raises OptionError for an invalid value."""
    are_shares = all(isinstance(share, int | float) and 0 <= share < math.inf for share in shares)
    if not are_shares or not any(shares):
        raise OptionError(
            f"tensor_split = {list(shares)!r:.100} must be numbers of at least 0, one for each GPU, not all 0"
        )
    return tuple(map(float, shares))


def _on_at_most(num_layers: int, place: GPUOptions) -> GPUOptions:
    """Return a place on the GPUs with the largest shares, where a model has fewer layers than GPUs."""
    if place.split != "layers" or len(place.numbers) <= num_layers:
        return place
    shares = place.shares or (1.0,) * len(place.numbers)
    by_share = sorted(range(len(shares)), key=lambda index: -shares[index])
    kept = sorted(by_share[: max(1, num_layers)])
    numbers = tuple(place.numbers[index] for index in kept)
    return replace(place, numbers=numbers, shares=place.shares and tuple(shares[index] for index in kept))


def _number(gpu: Device) -> int:
    return int(gpu.name.rpartition(":")[2])


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
