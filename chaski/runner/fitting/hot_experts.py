"""The choice between the experts of whole layers on GPUs and the most chosen experts of all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.ml import memory_bandwidth
from chaski.ml.backend import HOST, Device, GPUOptions
from chaski.ml.machine import physical_cores
from chaski.ml.rates import DeviceRates, ProductRates
from chaski.runner.fitting.gpu_rates import gpu_rates
from chaski.runner.fitting.layout import Layout
from chaski.runner.fitting.prediction import FileTier, Prediction, Rates
from chaski.runner.fitting.work import Work

__all__ = ["Candidate", "are_faster", "processor", "slot_counts"]

# Loading does not measure how fast the disk and the products of each type are.
_DISK = 3e9
_REACHED, _PRODUCTS = 0.7, 1e11
# Slots must be predicted to be faster by this much, since the popularity of experts is an assumption.
_MARGIN = 1.05


class Candidate(Struct, frozen=True):
    """A place of a model, the free bytes of each device, and the bytes of experts that stay in the file."""

    place: GPUOptions
    available: Mapping[str, int]
    in_files: int


def processor() -> DeviceRates:
    """Return rates of the processor, from the measured rate of its memory."""
    cores = physical_cores()
    reading = _REACHED * memory_bandwidth(cores)
    products = _PRODUCTS * cores
    return DeviceRates({"": ProductRates(reading, products)}, reading, products / 4, 3e-6)


def slot_counts(experts: int, layers: int, on_gpu: int) -> Sequence[int]:
    """Return numbers of slots to try, the most first.

    experts  of each of `layers` layers
    on_gpu   the number of layers whose experts have room on the GPUs
    """
    whole = experts * on_gpu // layers
    found = (whole + experts // layers, whole, whole * 9 // 10, whole * 3 // 4)
    return [count for count in dict.fromkeys(found) if 0 < count < experts]


def are_faster(
    work: Work, file: GGUFFile, gpus: Sequence[Device], slots: Candidate, whole: Candidate
) -> bool:
    """Return whether a usual turn is predicted to be faster with slots than with experts of whole layers."""
    devices = {HOST: processor(), **{gpu.name: gpu_rates(gpu.model) for gpu in gpus}}
    turns = []
    for each in (slots, whole):
        layout = Layout.of(work, file, each.place, each.available)
        if layout is None:
            return False
        experts = [m for m in work.matrices if m.is_expert and layout.weights[m.name] == HOST]
        share = each.in_files / max(1, sum(matrix.num_bytes for matrix in experts))
        tier = FileTier(min(1.0, share), _DISK, is_of_experts=True) if each.in_files else None
        turns.append(Prediction.of(work, layout, Rates(devices, tier)).turn)
    return turns[0] * _MARGIN < turns[1]
