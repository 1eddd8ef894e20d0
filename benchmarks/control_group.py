"""A control group with a limit on memory, for measuring what happens to models that do not fit.

Both versions of control groups are supported. It takes the rights of root, or a group that was handed over
(`systemd-run --user --scope -p Delegate=yes ...`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from chaski.ml import limits

__all__ = ["ControlGroup", "drop_cached", "limited"]


class ControlGroup:
    """A group of processes below the group of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def running(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the command that runs `command` inside of the group."""
        script = 'echo $$ > "$0" && exec "$@"'
        return ("sh", "-c", script, str(self._folder / "cgroup.procs"), *command)


@contextmanager
def limited(num_bytes: int) -> Iterator[ControlGroup]:
    """Make a group whose processes have this much memory together, cached files included, and no swap.

    Raises:
        SystemExit: if this machine allows no such group.
    """
    try:
        folder = _made(num_bytes)
    except OSError as error:
        raise SystemExit(f"cannot limit memory by a control group: {error}; run as root") from error
    try:
        yield ControlGroup(folder)
    finally:
        folder.rmdir()


def drop_cached(path: Path) -> None:
    """Drop a file's pages from the cache, so that the next process that reads them is charged for them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _made(num_bytes: int) -> Path:
    able = [group for group in limits.groups("memory") if _limits_memory(group)]
    if not able:
        raise FileNotFoundError("no control groups for memory are mounted")
    # Of version 2, only the topmost group may have processes and groups below it at the same time.
    folder = able[-1] / f"chaski-benchmark-{os.getpid()}"
    folder.mkdir()
    try:
        first = folder / "memory.limit_in_bytes"
        if first.exists():
            first.write_text(str(num_bytes))
        else:
            (folder / "memory.max").write_text(str(num_bytes))
            (folder / "memory.swap.max").write_text("0")
    except OSError:
        folder.rmdir()
        raise
    return folder


def _limits_memory(group: Path) -> bool:
    controllers = group / "cgroup.controllers"
    is_second = controllers.exists() and "memory" in controllers.read_text().split()
    return is_second or (group / "memory.limit_in_bytes").exists()
