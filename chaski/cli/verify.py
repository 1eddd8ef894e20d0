"""`chaski verify`: checks the content of the store against its digests."""

from __future__ import annotations

import sys

import click

from chaski.cli.completion import model_names

__all__ = ["command"]


@click.command("verify", short_help="Check every byte of the store.")
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=model_names)
@click.help_option("-h", "--help")
def command(models: tuple[str, ...]) -> None:
    """Hash all files of each MODEL again, or of the whole store, and report what is missing or damaged.

    Damaged files get the suffix "-damaged", so that the next pull or create replaces them. `chaski prune`
    deletes them.
    """
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
