"""`chaski prune`: deletes files of the store that no model uses."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("prune", short_help="Delete files that no model uses.")
@click.help_option("-h", "--help")
def command() -> None:
    """Delete files that belong to no model: unused blobs, unfinished downloads and leftovers.

    Files younger than an hour stay, because another program may be about to use them.
    """
    from chaski.cli.layout import file_size
    from chaski.cli.remote_store import note_own_store
    from chaski.store.store import Store

    note_own_store()
    count, size = Store.default().prune()
    click.echo(f"deleted {count} files, {file_size(size)}")
