"""`chaski list`: lists the models of the store."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click

from chaski.cli.json_output import echo_json, json_option

__all__ = ["command"]


@click.command("list", short_help="List the models of the store.")
@click.argument("prefix", default="")
@json_option("Print the models as JSON, in the form of /api/tags.")
@click.help_option("-h", "--help")
def command(prefix: str, as_json: bool) -> None:
    """List the models of the store whose names begin with PREFIX, newest first.

    If OLLAMA_HOST names a server, the command uses that server's store, else the store of this machine.
    """
    from chaski.cli.layout import age, file_size, table

    models = [model for model in _models() if model["name"].lower().startswith(prefix.lower())]
    if as_json:
        echo_json({"models": models})
        return
    rows = [
        (
            model["name"],
            model["digest"].removeprefix("sha256:")[:12],
            file_size(model["size"]),
            age(time.time() - datetime.fromisoformat(model["modified_at"]).timestamp()),
        )
        for model in models
    ]
    click.echo(table([("NAME", "ID", "SIZE", "MODIFIED"), *rows], indent=""))


def _models() -> list[dict[str, Any]]:
    """Return the models in the form of `/api/tags`."""
    from chaski.cli.remote_store import chosen_server
    from chaski.store.listing import listed
    from chaski.store.store import Store

    if (server := chosen_server()) is None:
        return listed(Store.default())
    found: list[dict[str, Any]] = server.get("/api/tags")["models"]
    return found
