"""`chaski cp`: gives a model a second name."""

from __future__ import annotations

import click

from chaski.cli.completion import model_names

__all__ = ["command"]


@click.command("cp", short_help="Copy a model to another name.")
@click.argument("source", shell_complete=model_names)
@click.argument("destination")
@click.help_option("-h", "--help")
def command(source: str, destination: str) -> None:
    """Make DESTINATION another name for the model SOURCE. No file is copied."""
    from chaski.cli.remote_store import chosen_server
    from chaski.names import ModelName
    from chaski.store.store import Store

    if (server := chosen_server()) is not None:
        server.tell("POST", "/api/copy", {"source": source, "destination": destination})
    else:
        Store.default().copy(ModelName.parse(source), ModelName.parse(destination))
    click.echo(f"copied '{source}' to '{destination}'")
