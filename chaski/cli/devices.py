"""Options that choose the devices for a model: `--backend` and `--num-gpu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["device_options"]

F = TypeVar("F", bound=Callable[..., Any])


def device_options(command: F) -> F:
    """Add the options. Their values are those of `chaski.load`."""
    for option in (
        click.option(
            "--num-gpu",
            type=click.IntRange(-1),
            callback=lambda ctx, param, value: None if value == -1 else value,
            metavar="N",
            help="Trailing layers to place on GPUs; 0 uses no GPU.  [default: -1, as many as fit]",
        ),
        click.option(
            "--backend", metavar="NAME", help="auto, cpu, cuda (NVIDIA GPUs), or reference (slow, NumPy)."
        ),
    ):
        command = option(command)
    return command
