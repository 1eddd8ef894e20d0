"""`chaski cache`: shows and empties the prefix cache on disk, and lists saved states."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
from msgspec.structs import replace

from chaski.cli.layout import age, file_size, table
from chaski.durations import parse_duration
from chaski.errors import OptionError

__all__ = ["command"]

_MEASURED = 256 << 20


@click.command("cache", short_help="Show or empty the prefix cache on disk.")
@click.argument("model", default="")
@click.option("--empty", is_flag=True, help="Remove all blocks, or the blocks of MODEL.")
@click.option("--unused-for", metavar="TIME", help="Remove blocks that were not used for this time: 12h, 7d.")
@click.option("--measure", is_flag=True, help="Measure how fast the folder can be written and read.")
@click.help_option("-h", "--help")
def command(model: str, empty: bool, unused_for: str | None, measure: bool) -> None:
    """Show the contents of the prefix cache on disk, for all models or those whose names contain MODEL.

    The cache is in this machine's model store. You can remove blocks while models run: the models compute
    removed blocks again. The list also shows saved states. They are not removed here; `chaski rm` removes a
    model's state with the model.
    """
    from chaski.env import Environment
    from chaski.runner.loading.prefix import disk_limits, prefix_folder
    from chaski.runner.prefix.folders import folder_uses, remove_files

    folder = prefix_folder()
    names = _names()
    uses = [replace(use, model=names.get(use.model, use.model)) for use in folder_uses(folder)]
    uses = [use for use in uses if model.lower() in use.model.lower()]
    if empty or unused_for is not None:
        before = None if unused_for is None else time.time() - _seconds(unused_for)
        removed = sum(remove_files(folder, use.path, before) for use in uses)
        click.echo(f"removed {file_size(removed)}")
        return
    if measure:
        written, read = _measured(folder)
        click.echo(f"{folder}: writes {file_size(int(written))}/s, reads {file_size(int(read))}/s")
        return
    rows = [
        (use.model, f"{use.num_blocks}", file_size(use.num_bytes), age(time.time() - use.used))
        for use in uses
        if use.num_blocks
    ]
    click.echo(table([("MODEL", "BLOCKS", "SIZE", "USED"), *rows], indent=""))
    limits = disk_limits(Environment.read())
    total = sum(use.num_bytes for use in uses)
    click.echo(f"\n{file_size(total)} of at most {file_size(limits.max_bytes)} in {folder}")
    if states := list(_state_rows(model)):
        click.echo("\n" + table([("STATE", "MODEL", "TOKENS", "SIZE", "SAVED"), *states], indent=""))


def _names() -> dict[str, str]:
    """Return the name of each model of the store by its file, because the server loads models by file."""
    from chaski.errors import ChaskiError
    from chaski.store.model import find_model
    from chaski.store.store import Store

    found = {}
    for entry in Store.default().entries():
        with suppress(ChaskiError):
            found[str(find_model(entry.name.short).path)] = entry.name.short
    return found


def _state_rows(model: str) -> Iterator[tuple[str, ...]]:
    """Yield name, model, tokens, size and age of saved states: states of models and files of slots.

    model: a part of either name, in any case
    """
    from chaski.env import Environment
    from chaski.errors import ChaskiError
    from chaski.runner.prefix.block_files import TEMPORARY
    from chaski.runner.states.files import summary
    from chaski.store.store import Store

    store, slots = Store.default(), Environment.read().states
    name_of = {Path(path).name: name for path, name in _names().items()}
    named = [(entry.name.short, store.state_path(entry.name)) for entry in store.entries()]
    files = [] if slots is None else sorted(each for each in Path(slots).glob("*") if each.is_file())
    files = [each for each in files if each.suffix != TEMPORARY]  # skips files that are being written
    for name, path in [*named, *((str(each), each) for each in files)]:
        with suppress(OSError):  # most models have no saved state
            found = path.stat()
            try:
                about = summary(path)
                of, tokens = name_of.get(about.model, about.model), f"{about.tokens}"
            except ChaskiError:
                of, tokens = "?", "damaged"
            if model.lower() in f"{name} {of}".lower():
                yield name, of, tokens, file_size(found.st_size), age(time.time() - found.st_mtime)


def _seconds(text: str) -> float:
    """Return a duration in seconds; days are allowed. Raises OptionError."""
    number = text.removesuffix("d")
    is_days = number != text and number.isdecimal() and len(number) < 6
    try:
        seconds = int(number) * 86400.0 if is_days else parse_duration(text)
    except OptionError:
        seconds = math.inf
    if seconds == math.inf:  # it has no meaning here
        raise OptionError(f"--unused-for = {text!r:.60} must be a time of at least 0, such as 12h or 7d")
    return seconds


def _measured(folder: Path) -> tuple[float, float]:
    """Write and read a file; return both rates in bytes per second. Raises StoreError."""
    import os
    from tempfile import NamedTemporaryFile

    from chaski.store.durable import store_errors

    data = os.urandom(1 << 20) * (_MEASURED >> 20)
    with store_errors(f"{folder} cannot be measured"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder) as file:
            begun = time.perf_counter()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            written = time.perf_counter()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            again = time.perf_counter()
            file.read()
            read = time.perf_counter()
    return _MEASURED / (written - begun), _MEASURED / (read - again)
