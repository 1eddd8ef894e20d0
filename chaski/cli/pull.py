"""`chaski pull`: downloads a model from a registry into the store."""

from __future__ import annotations

import click

from chaski.cli.transfer import access_to, fields_of, registry_options, show_progress

__all__ = ["command", "pull_model"]


@click.command("pull", short_help="Pull a model from a registry.")
@click.argument("model")
@registry_options
@click.help_option("-h", "--help")
def command(model: str, insecure: bool, username: str | None, password: str | None) -> None:
    """Pull MODEL: llama3.2:1b, hf.co/USER/REPOSITORY:QUANT or HOST/NAMESPACE/MODEL:TAG.

    MODEL may be a link of huggingface.co or ollama.com, or a quoted command such as "ollama run llama3.2".
    """
    from chaski.cli.remote_store import chosen_server, transfer
    from chaski.names import ModelName
    from chaski.pasted import pasted_name

    model = pasted_name(model)
    if (server := chosen_server()) is None:
        pull_model(model, insecure, username, password)
        return
    access = access_to(ModelName.parse(model), insecure, username, password)
    show_progress(transfer(server, "/api/pull", {"model": model, **fields_of(access)}))


def pull_model(
    model: str, insecure: bool = False, username: str | None = None, password: str | None = None
) -> None:
    """Pull a model into the store with progress bars."""
    from chaski.names import ModelName
    from chaski.store.pull import pull
    from chaski.store.store import Store

    name = ModelName.parse(model)
    show_progress(pull(Store.default(), name, access_to(name, insecure, username, password)))
