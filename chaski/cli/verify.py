"""`chaski verify`: checks receipts of answers, or the content of the store against its digests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from chaski.cli.completion import model_names

if TYPE_CHECKING:
    from chaski.runner.llm import LLM

__all__ = ["command"]

_STANDARD_INPUT = "-"


@click.command("verify", short_help="Check receipts of answers, or every byte of the store.")
@click.argument("names", nargs=-1, metavar="[RECEIPT]... | [MODEL]...", shell_complete=model_names)
@click.option("--model", metavar="NAME", help="Model of the receipts.  [default: the one with their digests]")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Compare N steps drawn at random.")
@click.option("--reference", is_flag=True, help="Compute in NumPy, by the definitions of all operations.")
@click.option("--key", metavar="KEY", help="Public key that must have signed the receipts, or its file.")
@click.option("--prompt", type=click.File(), help="File with the text of a prompt that is left out.")
@click.option("--adapter", "adapters", multiple=True, metavar="FILE", help="LoRA adapter of the answers.")
@click.option("--public-key", is_flag=True, help="Print the public key that signs receipts here.")
@click.help_option("-h", "--help")
def command(
    names: tuple[str, ...],
    model: str | None,
    sample: int | None,
    reference: bool,
    key: str | None,
    prompt: TextIO | None,
    adapters: tuple[str, ...],
    public_key: bool,
) -> None:
    """Compute the answers of receipts again, and report the first step that differs.

    RECEIPT is a JSON file, or a file of JSON lines, with receipts or with replies that contain them, such as
    the results of `chaski batch --receipts`; - is standard input.

    For the name of a MODEL, or without arguments, hash all files of the model, or of the whole store, again,
    and report what is missing or damaged. Damaged files get the suffix "-damaged", so that the next pull or
    create replaces them. `chaski prune` deletes them.
    """
    if public_key:
        _print_key()
        return
    is_receipt = [name == _STANDARD_INPUT or Path(name).is_file() for name in names]
    asks_for_receipts = model or sample or reference or key or prompt or adapters
    if not any(is_receipt) and not asks_for_receipts:
        _verify_store(names)
        return
    if not all(is_receipt) or not names:
        missing = next((name for name, is_file in zip(names, is_receipt, strict=True) if not is_file), None)
        named = "Give the file of a receipt." if missing is None else f"There is no file {missing!r}."
        raise click.UsageError(named)
    _verify_receipts(
        names, model, sample, reference, key, None if prompt is None else prompt.read(), adapters
    )


def _print_key() -> None:
    from chaski.receipts.signing import server_key, shown_key
    from chaski.store.store import Store

    click.echo(shown_key(server_key(Store.default())))


def _verify_receipts(
    names: Sequence[str],
    model: str | None,
    sample: int | None,
    reference: bool,
    key: str | None,
    prompt: str | None,
    adapters: Sequence[str],
) -> None:
    """Verify all receipts of some files. Models that several of them need in a row are loaded once."""
    from contextlib import ExitStack

    from chaski.receipts.found import found_receipts
    from chaski.runner.receipts.verify import load_for, stored_model, verify

    num_receipts = num_false = 0
    loaded: tuple[object, LLM] | None = None
    with ExitStack() as closing:
        for found in (found for name in names for found in found_receipts(name)):
            receipt = found.receipt
            place = stored_model(receipt) if model is None else model
            needed = place, receipt.model
            if loaded is None or loaded[0] != needed:
                closing.close()
                loaded = needed, closing.enter_context(load_for(receipt, place, reference, adapters))
            tokens = None if prompt is None else loaded[1].tokenize(prompt)
            result = verify(receipt, loaded[1], prompt=tokens, sample=sample, key=key)
            num_receipts, num_false = num_receipts + 1, num_false + (not result.is_same)
            signed = f", signed by {result.signed_by}" if result.signed_by else ", not signed"
            click.echo(f"{found.where}: {result}{signed if result.is_same else ''}")
    if num_false:
        raise click.ClickException(f"{num_false} of {num_receipts} receipts are false")


def _verify_store(models: Sequence[str]) -> None:
    from chaski.cli.layout import file_size, table
    from chaski.cli.remote_store import note_own_store
    from chaski.names import ModelName
    from chaski.store.store import Store
    from chaski.store.verify import verify

    note_own_store()
    count, size, faults = 0, 0, []
    for finding in verify(Store.default(), [ModelName.parse(model) for model in models]):
        count, size = count + 1, size + finding.size
        if finding.problem is not None:
            label = finding.digest.short if finding.digest else "manifest"
            problem = f"{finding.problem}; set aside" if finding.is_aside else finding.problem
            faults.append((label, problem, ", ".join(finding.models) or "no model"))
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{count} files, {file_size(size)}", nl=False, err=True)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    if faults:
        click.echo(table([("FILE", "PROBLEM", "MODELS"), *faults], indent=""))
        raise click.ClickException(
            f"{len(faults)} of {count} files are missing or damaged; pull or create their models again"
        )
    click.echo(f"{count} files, {file_size(size)}: all intact")
