"""`chaski completion`: shell completion of commands, options and model names."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from chaski.names import is_path

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["command", "known_models", "model_names"]

_VARIABLE = "_CHASKI_COMPLETE"  # the variable that click reads


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
    assert kind is not None, "click supports these shells"
    click.echo(kind(ctx.find_root().command, {}, "chaski", _VARIABLE).source())


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the model names, or file paths, that start with the typed text."""
    from click.shell_completion import CompletionItem

    if is_path(incomplete):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in known_models(incomplete)]


def known_models(begun: str) -> list[str]:
    """Return names starting with `begun` of local models and of models on the server in OLLAMA_HOST."""
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
