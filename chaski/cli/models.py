"""`chaski models`: lists the native architectures and the capabilities of their models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chaski.cli.layout import filled, table

if TYPE_CHECKING:
    from chaski.cli.model_table import ModelRow

__all__ = ["command"]

_LABEL_WIDTH, _COLUMNS = 16, 79


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the architectures that start with the typed text."""
    from chaski.model.registry import ARCHITECTURES

    return [name for name in ARCHITECTURES if name.startswith(incomplete)]


@click.command("models", short_help="List the model families that run natively.")
@click.argument("family", default="", shell_complete=_names)
@click.option("--json", "as_json", is_flag=True, help="Print all facts as JSON.")
@click.help_option("-h", "--help")
def command(family: str, as_json: bool) -> None:
    """List the architectures that the native engine supports, by their names in GGUF files.

    With FAMILY, a part of a model or architecture name, print all facts about the matching ones: `chaski
    models "qwen 3"`, `chaski models gemma4`.

    The columns show the capabilities of the models: they read PICTURES, return EMBEDDINGS ("file": if the
    file names a pooling), call TOOLS and THINK if published models do, and accept tokens PROPOSED by n-grams
    or a draft model. ERROR is the largest logit difference from transformers, or from llama.cpp where
    transformers lacks the model, measured on tiny random models.
    """
    import json

    from msgspec import to_builtins

    from chaski.cli.model_table import OTHERS, model_rows

    rows = [row for row in model_rows() if row.fits(family)]
    if not rows:
        raise click.ClickException(
            f"no native architecture fits {family!r}; `chaski models` lists all. {OTHERS}"
        )
    if as_json:
        click.echo(json.dumps([to_builtins(row) for row in rows], indent=2))
        return
    click.echo("\n".join(map(_details, rows)) if family else _table(rows))
    if not family:
        click.echo("\n" + filled(OTHERS, usual=_COLUMNS))


def _table(rows: list[ModelRow]) -> str:
    head = ("NAME", "TEXT", "PICTURES", "EMBEDDINGS", "TOOLS", "THINK", "PROPOSED", "ERROR")
    words = {"yes": "yes", "by file": "file", "no": "-"}
    cells = [head] + [
        (
            row.architecture,
            *map(_mark, (row.text, row.pictures)),
            words[row.embeddings],
            *map(_mark, (row.tools, row.thinking)),
            "heads" if row.has_heads else _mark(row.speculation),
            f"{next(iter(row.differences.values())):.0e}",
        )
        for row in rows
    ]
    return table(cells, indent="", gap=2)


def _mark(value: object) -> str:
    return "yes" if value else "-"


def _details(row: ModelRow) -> str:
    """Return all facts about one architecture, one or more lines each."""
    lines = [f"  {row.architecture}"]
    for label, text in row.facts():
        lines.append(filled(text, f"    {label}".ljust(_LABEL_WIDTH + 4), _COLUMNS))
    return "\n".join(lines) + "\n"
