"""`chaski list`: lists the models of the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import click

__all__ = ["command"]


@click.command("list", short_help="List the models of the store.")
@click.argument("prefix", default="")
@click.help_option("-h", "--help")
def command(prefix: str) -> None:
    """List the models of the store whose names begin with PREFIX, newest first.

    If OLLAMA_HOST names a server, the command uses that server's store, else the store of this machine.
    """
    from chaski.cli.layout import age, file_size, table

    rows = [
        (name, digest, file_size(size), age(time.time() - modified))
        for name, digest, size, modified in _models()
        if name.lower().startswith(prefix.lower())
    ]
    click.echo(table([("NAME", "ID", "SIZE", "MODIFIED"), *rows], indent=""))


def _models() -> Iterator[tuple[str, str, int, float]]:
    """Yield name, digest, size and modification time of each model."""
    from chaski.cli.remote_store import chosen_server
    from chaski.store.store import Store

    if (server := chosen_server()) is None:
        for entry in Store.default().entries():
            yield entry.name.short, entry.digest.short, entry.size, entry.modified
        return
    for model in server.get("/api/tags")["models"]:
        modified = datetime.fromisoformat(model["modified_at"]).timestamp()
        yield model["name"], model["digest"].removeprefix("sha256:")[:12], model["size"], modified
