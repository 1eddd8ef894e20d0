"""Plan one model on described machines: `python -m tools.described_machines` writes the plans as JSON.

The model is a hollow file of Qwen 3.5 35B-A3B in Q4_K_M, whose header is all that a plan reads. The cards are
emulated, so the planner is the one that loads models, with the memory that a description states. Rates are
simulated: those of cards come from `chaski.runner.fitting.gpu_rates`, and those of processors from the
nominal bandwidth of memory. `tools.docs` makes a page of the plans.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec import Struct

from benchmarks.make_models import SHAPES, write_hollow
from benchmarks.shapes.qwen35 import Qwen35
from chaski.ml.backend import HOST
from chaski.ml.rates import DeviceRates, ProductRates
from chaski.runner.choosing import fitting
from chaski.runner.fitting import hot_experts
from chaski.runner.fitting.gpu_rates import gpu_rates
from chaski.runner.fitting.work import Work
from chaski.runner.loading.files import OpenedModel
from chaski.store.model import find_model
from tests.cuda.emulated import NAME, gpu
from tools.docs import PLANS

__all__ = ["MACHINES", "Machine", "hollow_model", "plan"]

_SHAPE, _LAYERS = "qwen3.5-35b-a3b", 40
_GIB = 1 << 30
# What the system and other programs take of memory, and of a card.
_TAKEN, _TAKEN_OF_CARD = 2 * _GIB, _GIB // 2
# The share of memory's nominal bandwidth that products reach, and multiply-adds per second of a core.
_REACHED, _PRODUCTS = 0.7, 1e11
_DISK = 3e9


class Machine(Struct, frozen=True):
    """A machine: GiB of memory, its nominal bytes per second, cores, and the GiB of each card.

    card: the product whose figures the cards have
    """

    name: str
    memory: int
    bandwidth: float
    cores: int
    cards: Sequence[int] = ()
    card: str = ""


_DDR4, _DDR5, _UNIFIED = 51.2e9, 89.6e9, 120e9
MACHINES = (
    Machine("no card, 8 GB", 8, _DDR4, 4),
    Machine("no card, 16 GB", 16, _DDR4, 4),
    Machine("no card, 32 GB", 32, _DDR5, 8),
    Machine("no card, 64 GB", 64, _DDR5, 8),
    Machine("unified memory, 16 GB", 16, _UNIFIED, 8),
    Machine("unified memory, 32 GB", 32, _UNIFIED, 8),
    Machine("8 GB card (RTX 4060), 16 GB", 16, _DDR4, 6, (8,), "RTX 4060"),
    Machine("8 GB card (RTX 4060), 32 GB", 32, _DDR5, 8, (8,), "RTX 4060"),
    Machine("12 GB card (RTX 3060), 32 GB", 32, _DDR4, 8, (12,), "RTX 3060"),
    Machine("24 GB card (RTX 4090), 64 GB", 64, _DDR5, 8, (24,), "RTX 4090"),
    Machine("two 24 GB cards (RTX 3090), 64 GB", 64, _DDR4, 8, (24, 24), "RTX 3090"),
    Machine("80 GB card (H100), 128 GB", 128, 4 * _DDR5, 32, (80,), "H100"),
)


def hollow_model(folder: Path) -> Path:
    """Write a file of the model that takes almost no space, and return its path."""
    path, shape = folder / f"{_SHAPE}.gguf", SHAPES[_SHAPE]
    assert isinstance(shape, Qwen35)
    write_hollow(path, replace(shape, num_layers=_LAYERS), "Q4_K_M", _SHAPE)
    return path


def plan(machine: Machine, path: Path) -> dict[str, Any]:
    """Return the plan of a model on a machine, with its simulated rates."""
    with _described(machine):
        model = OpenedModel.of(find_model(str(path)))
        fit = fitting.Fit.of(model, rates=lambda work, devices: _rates(machine, work, devices))
        if not fit.estimate.fits():
            return {"fits": False}
        assert fit.layout is not None
        assert fit.prediction is not None
        needs, work = fit.estimate.needs, fit.estimate.work
        return {
            "fits": True,
            "context": fit.estimate.size.capacity,
            "devices": {name: fit.layout.contents(work, name) for name in needs.total},
            "in_files": sum(needs.in_files.values()),
            "weights": sum(needs.weights.values()) + sum(needs.in_files.values()),
            "prefill": round(fit.prediction.prefill, 1),
            "decode": round(fit.prediction.decode, 1),
        }


@contextmanager
def _described(machine: Machine) -> Iterator[None]:
    """Let this machine look like another one."""
    total = machine.memory * _GIB
    sizes = [size * _GIB - _TAKEN_OF_CARD for size in machine.cards]
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            for function, value in (("total_memory", total), ("available_memory", total - _TAKEN)):
                if name.startswith("chaski.") and hasattr(module, function):
                    stack.enter_context(patch.object(module, function, lambda value=value: value))
        stack.enter_context(patch.object(gpu, "SIZES", sizes))
        stack.enter_context(patch.object(fitting, "disk_rate", lambda path: _DISK))
        stack.enter_context(patch.object(hot_experts, "processor", lambda: _processor(machine)))
        stack.enter_context(patch.object(hot_experts, "gpu_rates", lambda model: gpu_rates(machine.card)))
        stack.enter_context(patch.dict(os.environ, {"CHASKI_BACKEND": NAME if sizes else "cpu"}))
        yield


def _rates(machine: Machine, work: Work, devices: Sequence[str]) -> Mapping[str, DeviceRates]:
    return {name: _processor(machine) if name == HOST else gpu_rates(machine.card) for name in devices}


def _processor(machine: Machine) -> DeviceRates:
    reading, products = _REACHED * machine.bandwidth, _PRODUCTS * machine.cores
    return DeviceRates({"": ProductRates(reading, products)}, reading, products / 4, 3e-6)


def main() -> None:
    """Plan the model on every machine."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = hollow_model(Path(folder))
        plans = {}
        for machine in MACHINES:
            plans[machine.name] = plan(machine, path)
            print(machine.name, plans[machine.name], flush=True)
    PLANS.write_text(json.dumps(plans, indent=1) + "\n")


if __name__ == "__main__":
    main()
