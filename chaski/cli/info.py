"""`chaski info`: shows this machine's devices and settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from chaski import __version__
from chaski.cli.json_output import echo_json, json_option
from chaski.cli.layout import filled, section, size_in_bytes

if TYPE_CHECKING:
    from chaski.env import Variable
    from chaski.ml.backend import Device

__all__ = ["command"]


@click.command("info", short_help="Show this machine's devices and settings.")
@json_option("Print the facts as JSON.")
@click.help_option("-h", "--help")
def command(as_json: bool) -> None:
    """Show the version, the devices, and the settings that come from the environment."""
    from chaski.env import Environment, variables
    from chaski.ml import CPUOptions, open_backend, usual_backend
    from chaski.ml.machine import physical_cores
    from chaski.names import AUTO

    environment = Environment.read()
    threads = environment.threads or physical_cores()
    backend = open_backend("cpu", CPUOptions(threads, environment.isa, environment.variants))
    device = backend.devices()[0]
    memory, available = size_in_bytes(device.memory_bytes), size_in_bytes(device.available_bytes)
    rows = [
        ("version", __version__),
        ("backend", usual_backend()[0] if environment.backend == AUTO else environment.backend),
        ("device", device.model),
        ("instruction set", device.features[-1] if environment.isa == "auto" else environment.isa),
        ("instruction sets here", ", ".join(device.features)),
        ("cores", device.cores),
        ("threads", threads),
        ("memory", f"{memory}, {available} available"),
        *(("GPU", gpu) for gpu in _gpus()),
    ]
    backend.close()
    if as_json:
        echo_json({**_facts(rows, device), "environment": {row.name: _setting(row) for row in variables()}})
        return
    click.echo(section("chaski", rows))
    if environment.variants == "measured":
        click.echo(section("Kernel variants by weights and number of tokens", _variants(device.variants)))
    click.echo("  Environment")
    for row in variables():
        click.echo(filled(f"{row.name}  {_value(row)}", "    "))
        click.echo(filled(row.meaning, "        "))


def _facts(rows: Iterable[tuple[str, object]], device: Device) -> dict[str, Any]:
    """Return the facts about this machine for programs, with lists and numbers instead of texts."""
    from msgspec import to_builtins

    from chaski.errors import ChaskiError
    from chaski.ml import gpus_of

    facts = {name.replace(" ", "_"): value for name, value in rows}
    known = ("version", "backend", "device", "instruction_set", "cores", "threads")
    gpus: list[Any] = []
    with suppress(ChaskiError):
        gpus = [to_builtins(gpu) for gpu in gpus_of("cuda")]
    return {
        **{name: facts[name] for name in known},
        "instruction_sets": list(device.features),
        "memory_bytes": device.memory_bytes,
        "available_bytes": device.available_bytes,
        "gpus": gpus,
    }


def _setting(row: Variable) -> dict[str, str | None]:
    value = _value(row) if os.environ.get(row.name) else None
    return {"value": value, "default": row.default, "meaning": row.meaning}


def _gpus() -> list[str]:
    """Return a description of each GPU, or the reason why no GPU can be used."""
    from chaski.errors import ChaskiError
    from chaski.ml import gpus_of

    try:
        return [
            f"{gpu.name} {gpu.model}, {', '.join(gpu.features)}, {size_in_bytes(gpu.memory_bytes)}, "
            f"{size_in_bytes(gpu.available_bytes)} available"
            for gpu in gpus_of("cuda")
        ]
    except ChaskiError as error:
        return [f"none: {error}"]


def _variants(picks: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return the chosen kernel variants by weight type. Models measure them while they answer."""
    if not picks:
        return [("none yet", "models measure them while they answer")]
    return [
        (type, ", ".join(f"{tokens}: {variant}" for tokens, variant in of_type.items()))
        for type, of_type in picks.items()
    ]


def _value(row: Variable) -> str:
    """Return the value of a variable, with a default in parentheses. Keys are hidden."""
    value = os.environ.get(row.name)
    return f"({row.default})" if not value else "(set)" if row.kind in ("key", "keys") else value
