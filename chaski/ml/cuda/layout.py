"""Placement of a model on the GPUs and the processor of a machine: one GPU, several, or both kinds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from chaski.ml import open_backend, open_together
from chaski.ml.backend import HOST, Backend, BackendOptions, CPUOptions, GPUOptions
from chaski.ml.cuda.backend import CUDABackend
from chaski.ml.cuda.device import GPU

__all__ = ["open_layout"]


def open_layout(
    open_gpu: Callable[[int], GPU], name: str, options: BackendOptions, cpu: CPUOptions, gpus: GPUOptions
) -> Backend:
    """Open the backend for a placement. `open_gpu` opens a GPU by its number, `name` is for `open_backend`.

    Raises what opening a GPU raises.
    """

    def open_on(number: int, options: BackendOptions) -> CUDABackend:
        # The host computes little of a batch, so more threads would only wait for each other.
        host = open_backend("cpu", CPUOptions(threads=1, isa=cpu.isa, variants=cpu.variants))
        return CUDABackend(options, open_gpu(number), host, spared=gpus.spared)

    is_on_cpu = HOST in gpus.devices
    if len(gpus.numbers) == 1 and not is_on_cpu:
        return open_on(gpus.numbers[0], options)
    on_cpu = {HOST: lambda options: open_backend("cpu", options, cpu)} if is_on_cpu else {}
    on_gpus = {f"cuda:{number}": partial(open_on, number) for number in gpus.numbers}
    shares = gpus.shares if gpus.shares is None else (*([1.0] * len(on_cpu)), *gpus.shares)
    layers = sys.maxsize if gpus.layers is None and is_on_cpu else gpus.layers
    return open_together(
        on_cpu | on_gpus, options, name, gpus.split, shares, layers, gpus.overrides, gpus.expert_slots
    )
