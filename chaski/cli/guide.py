"""`chaski guide`: the bundled guide answers questions about chaski."""

from __future__ import annotations

import sys

import click

__all__ = ["command"]


@click.command("guide", short_help="Answer a question about chaski, offline.")
@click.argument("question", nargs=-1)
@click.help_option("-h", "--help")
@click.pass_context
def command(ctx: click.Context, question: tuple[str, ...]) -> None:
    """Answer QUESTION about chaski; without a question, chat.

    The guide is part of chaski and needs no network. It looks up prewritten answers with a sentence encoder.
    It is not a language model; `chaski demo` fetches one.
    """
    from chaski.cli.run import command as run

    if sys.stderr.isatty():
        click.echo("The guide looks up prewritten answers. For a language model: chaski demo", err=True)
    ctx.invoke(run, model="guide", prompt=question)
