"""`chaski ps`: lists the models in a running server's memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from chaski.cli.json_output import echo_json, json_option

__all__ = ["command"]

_FOREVER_SECONDS = 20 * 365 * 86400


@click.command("ps", short_help="List the models in memory.")
@click.argument("prefix", default="")
@json_option("Print the models as JSON, in the form of /api/ps.")
@click.help_option("-h", "--help")
def command(prefix: str, as_json: bool) -> None:
    """List the models in the memory of the running server whose names begin with PREFIX."""
    from chaski.cli.expert_line import experts_line
    from chaski.cli.layout import file_size, filled, table
    from chaski.remote import running_server

    answer = running_server().get("/api/ps")
    models = [each for each in answer["models"] if each["name"].lower().startswith(prefix.lower())]
    if as_json:
        echo_json({**answer, "models": models})
        return
    rows = [
        (
            model["name"],
            model.get("digest", "")[:12],
            file_size(model.get("size", 0)),
            _processor(model.get("size", 0), model.get("size_vram", 0)),
            model.get("context_length", ""),
            _until(model.get("expires_at", "")),
            model.get("engine", ""),
        )
        for model in models
    ]
    click.echo(table([("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "ENGINE"), *rows], indent=""))
    for model in models:
        if words := model.get("context_reason"):
            click.echo(f"{model['name']}: context: {words}")
        if words := model.get("speculation"):
            click.echo(filled(f"{model['name']}: proposals come from {words}"))
        if names := model.get("adapters"):
            click.echo(filled(f"{model['name']}: adapters in memory: {', '.join(map(_short, names))}"))
        tiers = {tier: use for tier, use in (model.get("prefix_cache") or {}).items() if use["blocks"]}
        if tiers:
            click.echo(
                filled(f"{model['name']}: prefix cache: {', '.join(map(_tier, tiers, tiers.values()))}")
            )
        if experts := model.get("experts"):
            click.echo(filled(f"{model['name']}: experts: {experts_line(experts)}"))
        for replica in model.get("replicas", ()):
            click.echo(filled(f"{model['name']}: {_replica(replica)}"))
        if reason := model.get("engine_reason"):
            click.echo(filled(f"{model['name']}: runs on {model['engine']}: {reason}"))


def _tier(tier: str, use: Mapping[str, int]) -> str:
    from chaski.cli.layout import file_size

    place = "on disk" if tier == "disk" else f"in {tier}"
    number = use["blocks"]
    return f"{number} {'block' if number == 1 else 'blocks'} ({file_size(use['bytes'])}) {place}"


def _replica(replica: Mapping[str, Any]) -> str:
    taken = f"{replica['answers']} of {replica['places']} places taken"
    leaving = ", leaves" if replica["is_leaving"] else ""
    shards = "".join(f", shard {pid} on {node}" for node, pid in replica.get("shards", ()))
    return (
        f"replica {replica['name']} on {replica['node']}, process {replica['pid']}{shards}: {taken}{leaving}"
    )


def _short(name: str) -> str:
    """Return the display name of an adapter. Adapters of the store are shown by a shortened digest."""
    return name.removeprefix("sha256-")[:12] if name.startswith("sha256-") else name


def _processor(size: int, on_gpu: int) -> str:
    if not on_gpu:
        return "100% CPU"
    share = round(100 * (size - on_gpu) / size) if size else 0
    return f"{share}%/{100 - share}% CPU/GPU" if share else "100% GPU"


def _until(text: str) -> str:
    """Return the time until a model is unloaded: `4 minutes from now`."""
    from chaski.cli.layout import age

    try:
        left = datetime.fromisoformat(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return "Unknown"
    if left > _FOREVER_SECONDS:
        return "Forever"
    return "Stopping..." if left < 0 else age(left).replace(" ago", " from now")
