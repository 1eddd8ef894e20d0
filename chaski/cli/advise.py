"""`chaski advise`: which file of a model suits this machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from chaski.cli.completion import model_names
from chaski.cli.json_output import echo_json, json_option
from chaski.cli.layout import file_size, filled, table
from chaski.cli.transfer import access_to, registry_options

if TYPE_CHECKING:
    from chaski.runner.choosing.advice import Advice

__all__ = ["command"]

_COLUMNS = 79
_LONGEST = 26


@click.command("advise", short_help="Show which file of a model suits this machine.")
@click.argument("where", metavar="NAME-OR-FOLDER", shell_complete=model_names)
@click.option(
    "--context", type=click.IntRange(1), metavar="N", help="Tokens of context.  [default: as many as fit]"
)
@registry_options
@json_option("Print all figures as JSON.")
@click.help_option("-h", "--help")
def command(
    where: str,
    context: int | None,
    insecure: bool,
    username: str | None,
    password: str | None,
    as_json: bool,
) -> None:
    """List the files of a model, which of them fit this machine, how fast they are, and what they lose.

    NAME-OR-FOLDER is a folder of GGUF files, a file, a model of the store, whose tags are compared, or a
    repository of Hugging Face, hf.co/USER/REPOSITORY, of which only the beginning of one file is fetched.

    TOKENS/S is the predicted rate of decoding, as `chaski fit` shows it. LOSS is the mean KL divergence from
    full precision in nats: measured by `chaski eval --against`, or published for Llama 3 8B.
    """
    from chaski.runner.choosing.advice import advise, recommended

    with ExitStack() as closing:
        candidates = _candidates(closing, where, insecure, username, password)
        found = advise(candidates, context)
    best = recommended(found, context)
    if as_json:
        echo_json(_as_object(found, best))
        return
    click.echo(_table(found) + "\n")
    if any(each.loss is not None and each.loss.source == "measured" for each in found):
        click.echo("* measured here by chaski eval --against\n")
    click.echo(filled(_advice(found, best), usual=_COLUMNS))


def _candidates(
    closing: ExitStack, where: str, insecure: bool, username: str | None, password: str | None
) -> Sequence[Any]:
    from chaski.errors import OptionError
    from chaski.names import ModelName, is_path
    from chaski.pasted import pasted_name
    from chaski.runner.choosing.candidates import is_hub, local_candidates, remote_candidates

    if not is_path(where) and not Path(where).exists():
        try:
            name = ModelName.parse(pasted_name(where))
        except OptionError:
            return local_candidates(where)
        if is_hub(name) or "://" in where:
            access = access_to(name, insecure, username, password)
            return closing.enter_context(remote_candidates(name, access))
    return local_candidates(where)


def _table(found: Sequence[Advice]) -> str:
    rows: list[Sequence[object]] = [("FILE", "SIZE", "FITS", "CONTEXT", "MEMORY", "TOKENS/S", "LOSS")]
    names = _short_names([each.candidate.name for each in found], [each.type for each in found])
    rows += [(name, *_cells(each)) for name, each in zip(names, found, strict=True)]
    return table(rows, indent="", gap=2)


def _short_names(names: Sequence[str], types: Sequence[str]) -> list[str]:
    """Return the types if they differ, else the ends of the names."""
    if all(types) and len(set(types)) == len(types):
        return list(types)
    ends = [name.rpartition("/")[2] for name in names]
    return [end if len(end) <= _LONGEST else f"…{end[1 - _LONGEST :]}" for end in ends]


def _cells(found: Advice) -> tuple[str, ...]:
    size = file_size(found.candidate.num_bytes)
    if found.problem:
        return size, "?", "-", "-", "-", _loss(found)
    rate = "-" if found.rate is None else _rate(found.rate)
    context = f"{found.context:,}"
    return size, "yes" if found.fits else "no", context, file_size(found.needed), rate, _loss(found)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _loss(found: Advice) -> str:
    if found.loss is None:
        return "-"
    mark = " *" if found.loss.source == "measured" else ""
    return f"{found.loss.divergence:.4f}{mark}"


def _advice(found: Sequence[Advice], best: Advice | None) -> str:
    if best is None:
        problems = [each.problem for each in found if each.problem]
        if len(problems) == len(found):
            return f"None of these runs natively: {problems[0]}"
        least = min((each for each in found if not each.problem), key=lambda each: each.needed)
        return (
            f"None of these fits: the smallest needs {file_size(least.needed)} and "
            f"{file_size(least.available)} are free. Close other programs, use a smaller --context or model."
        )
    rate = "on GPUs" if best.rate is None else f"about {_rate(best.rate)} tokens/s"
    loss = "unknown loss" if best.loss is None else f"loss {best.loss.divergence:.4f} nats"
    kind = best.type or "this file"
    return (
        f"Recommended: {kind}, {file_size(best.candidate.num_bytes)}, {rate}, {best.context:,} tokens of "
        f"context, {loss}: chaski run {quote(best.candidate.name)}"
    )


def _as_object(found: Sequence[Advice], best: Advice | None) -> dict[str, Any]:
    from msgspec import to_builtins

    return {
        "recommended": None if best is None else best.candidate.name,
        "files": [
            {
                "name": each.candidate.name,
                "type": each.type,
                "bytes": each.candidate.num_bytes,
                "fits": each.fits,
                "context": each.context or None,
                "needed_bytes": each.needed or None,
                "available_bytes": each.available or None,
                "tokens_per_second": each.rate,
                "loss": to_builtins(each.loss),
                "problem": each.problem or None,
            }
            for each in found
        ],
    }
