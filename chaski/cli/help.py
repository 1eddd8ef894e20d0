"""`chaski help`: shows the help of a command."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

__all__ = ["command"]


def _commands(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    group = ctx.find_root().command
    names = group.list_commands(ctx) if isinstance(group, click.Group) else ()
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command("help", short_help="Show the help of a command.")
@click.argument("command", nargs=-1, shell_complete=_commands)
@click.help_option("-h", "--help")
@click.pass_context
def command(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of COMMAND, as `chaski COMMAND --help` does; alone, the list of commands."""
    found = ctx.find_root()
    for word in command:
        if not isinstance(found.command, click.Group):
            raise click.UsageError(f"{found.command_path} has no commands.", ctx)
        _, inner, _ = found.command.resolve_command(found, [word])
        assert inner is not None, "unknown commands raise"
        found = click.Context(inner, parent=found, info_name=word)
    click.echo(found.get_help())
