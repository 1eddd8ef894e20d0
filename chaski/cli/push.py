"""`chaski push`: uploads a model of the store to its registry."""

from __future__ import annotations

import click

from chaski.cli.completion import model_names
from chaski.cli.transfer import access_to, fields_of, registry_options, show_progress

__all__ = ["command"]

_WEBSITE = "https://ollama.com"


@click.command("push", short_help="Push a model to a registry.")
@click.argument("model", shell_complete=model_names)
@registry_options
@click.help_option("-h", "--help")
def command(model: str, insecure: bool, username: str | None, password: str | None) -> None:
    """Push MODEL to the registry in its name."""
    from chaski.cli.remote_store import chosen_server, transfer
    from chaski.names import DEFAULT_HOST, ModelName
    from chaski.store.push import push
    from chaski.store.store import Store

    name, server = ModelName.parse(model), chosen_server()
    access = access_to(name, insecure, username, password)
    if server is not None:
        show_progress(transfer(server, "/api/push", {"model": model, **fields_of(access)}))
    else:
        show_progress(push(Store.default(), name, access))
    if name.host == DEFAULT_HOST:
        click.echo(f"\nYou can find your model at:\n\n\t{_WEBSITE}/{name.namespace}/{name.model}")
