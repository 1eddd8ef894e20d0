"""`chaski rm`: removes models from the store."""

from __future__ import annotations

import click

from chaski.cli.completion import model_names

__all__ = ["command"]


@click.command("rm", short_help="Remove models from the store.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=model_names)
@click.help_option("-h", "--help")
def command(models: tuple[str, ...]) -> None:
    """Remove each MODEL and the files that no other model uses."""
    from chaski.cli.remote_store import chosen_server
    from chaski.names import ModelName
    from chaski.store.store import Store

    server, store = chosen_server(), Store.default()
    for model in models:
        if server is not None:
            server.tell("DELETE", "/api/delete", {"model": model})
        else:
            store.remove(ModelName.parse(model))
        click.echo(f"deleted '{model}'")
