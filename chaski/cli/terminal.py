"""Safe printing of texts from models, files and servers, which must not control the terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

import click

__all__ = ["echo_note", "echo_text", "visible", "wrapped"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def echo_text(text: str, nl: bool = True) -> None:
    """Print a text on the standard output: unchanged to a file or pipe, `visible` on a terminal."""
    # With `color`, click leaves the text unchanged; without it, click removes some sequences.
    click.echo(visible(text) if sys.stdout.isatty() else text, nl=nl, color=True)


def echo_note(text: str) -> None:
    """Print a note on stderr."""
    click.echo(f"Note: {wrapped(text, 'Note: ')}", err=True)


def visible(text: str) -> str:
    """Return the text with control characters escaped, except line ends and tabs.

    Carriage returns are removed: they belong to line ends, or would overwrite a line.
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text.replace("\r", ""))


def wrapped(text: str, label: str = "") -> str:
    """Format a message for stderr after a label: escaped, and wrapped at words on a terminal.

    Models are named as the user typed them, instead of by their blobs.
    """
    text = visible(_named(text))
    if not sys.stderr.isatty():
        return text
    columns = max(shutil.get_terminal_size().columns - 1, 20)
    lines = f"{label}{text}".split("\n")
    return "\n".join(_broken(line, columns) for line in lines).removeprefix(label)


def _named(text: str) -> str:
    """Return a message with the names of models instead of those of their blobs."""
    if "sha256-" not in text:
        return text
    from chaski.store.blob_names import with_model_names

    return with_model_names(text, sys.argv[1:])


def _broken(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    margin = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line, columns, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )
