"""`chaski completion`: completion of commands, options and model names in a shell."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from chaski.names import is_path

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["command", "known_models", "model_names"]

_VARIABLE = "_CHASKI_COMPLETE"  # what click looks for


@click.command("completion", short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.help_option("-h", "--help")
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes chaski's commands, options and model names in SHELL.

    \b
    bash   eval "$(chaski completion bash)"                    in ~/.bashrc
    zsh    eval "$(chaski completion zsh)"                     in ~/.zshrc
    fish   chaski completion fish > ~/.config/fish/completions/chaski.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "one of click's own"
    click.echo(kind(ctx.find_root().command, {}, "chaski", _VARIABLE).source())


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the models, or the files, that begin like what was typed."""
    from click.shell_completion import CompletionItem

    if is_path(incomplete):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in known_models(incomplete)]


def known_models(begun: str) -> list[str]:
    """Return the names of models here, and on the server that OLLAMA_HOST names, that begin like this."""
    from chaski.errors import ChaskiError
    from chaski.remote import chosen_server
    from chaski.store.store import Store

    names: list[str] = []
    with suppress(ChaskiError):
        names += (name.short for name in Store.default().all_names())
    with suppress(ChaskiError):
        if (server := chosen_server()) is not None and server.is_there():
            names += (model["name"] for model in server.get("/api/tags")["models"])
    return sorted({name for name in names if name.startswith(begun) and name.isprintable()})
