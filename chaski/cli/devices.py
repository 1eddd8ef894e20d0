"""Options that choose the devices for a model and its parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

__all__ = ["device_options"]

Command = Callable[..., Any]

_PLACING = (
    click.option(
        "--num-gpu",
        type=click.IntRange(-1),
        callback=lambda ctx, param, value: None if value == -1 else value,
        metavar="N",
        help="Trailing layers to place on GPUs; 0 uses no GPU.  [default: -1, as many as fit]",
    ),
    click.option(
        "--n-cpu-moe",
        "-ncmoe",
        type=click.IntRange(0),
        metavar="N",
        help="Leading layers whose experts stay on the processor.  [default: as few as needed]",
    ),
    click.option(
        "--cpu-moe",
        "-cmoe",
        is_flag=True,
        default=None,
        help="Keep the experts of all layers on the processor.",
    ),
    click.option(
        "--gpu-experts",
        type=click.IntRange(0),
        metavar="N",
        help="Experts of each layer on a GPU, while the processor computes the others.  [default: predicted]",
    ),
    click.option(
        "--override-tensor",
        "-ot",
        multiple=True,
        callback=lambda ctx, param, value: list(value) or None,
        metavar="PATTERN=DEVICE",
        help="Place tensors whose names match on CPU, CUDA0 and so on; several with commas.",
    ),
)
_NAMES = ("num_gpu", "n_cpu_moe", "cpu_moe", "gpu_experts", "override_tensor")


def device_options(command: Command) -> Command:
    """Add the options. The command gets `backend`, and the others that are given as a dictionary `placing`.

    Their names and values are those of `chaski.load`.
    """

    @wraps(command)
    def placed(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in _NAMES}
        placing = {name: value for name, value in given.items() if value is not None}
        return command(*args, placing=placing, **options)

    for option in reversed(_PLACING):
        placed = option(placed)
    return click.option(
        "--backend", metavar="NAME", help="auto, cpu, cuda (NVIDIA GPUs), or reference (slow, NumPy)."
    )(placed)
