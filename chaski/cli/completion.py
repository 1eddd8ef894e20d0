"""`chaski completion`: completion of commands, options and model names in a shell."""

from __future__ import annotations

import click

__all__ = ["command", "model_names"]

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


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The models that begin like what was typed."""
    from chaski.errors import ChaskiError
    from chaski.store.store import Store

    try:
        names = [name.short for name in Store.default().all_names()]
    except ChaskiError:
        return []
    return [name for name in names if name.startswith(incomplete)]
