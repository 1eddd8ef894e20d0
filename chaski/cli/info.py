"""`chaski info`: this machine as chaski sees it."""

from __future__ import annotations

import click

import chaski
from chaski.cli.layout import section, size

__all__ = ["command"]

_BYTES = ("B", "kB", "MB", "GB", "TB")


@click.command("info", short_help="Show what chaski computes with on this machine.")
def command() -> None:
    """Show the version, the devices, and the settings that come from the environment."""
    from chaski.env import Environment, variables
    from chaski.ml import BackendOptions, open_backend
    from chaski.ml.machine import physical_cores

    environment = Environment.read()
    threads = environment.threads or physical_cores()
    backend = open_backend("cpu", BackendOptions(threads, environment.isa))
    device = backend.devices()[0]
    memory, available = size(device.memory_bytes, _BYTES), size(device.available_bytes, _BYTES)
    rows = [
        ("version", chaski.__version__),
        ("backend", backend.name),
        ("device", device.name),
        ("instruction set", device.features[-1] if environment.isa == "auto" else environment.isa),
        ("instruction sets here", ", ".join(device.features)),
        ("cores", device.cores),
        ("threads", threads),
        ("memory", f"{memory}, {available} available"),
    ]
    backend.close()
    click.echo(section("chaski", rows))
    click.echo(section("Environment", ((v.name, f"{v.meaning} (default: {v.default})") for v in variables())))
