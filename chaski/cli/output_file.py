"""A check of a file to write, before work that takes long begins."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

__all__ = ["check_target"]


def check_target(path: Path) -> None:
    """Raise OptionError if the file cannot be written."""
    from chaski.errors import OptionError

    if path.is_dir():
        raise OptionError(f"{path} is a folder; name the file to write, such as {path / 'model.gguf'}")
    if not path.parent.is_dir():
        raise OptionError(f"{path} cannot be written: folder {path.parent} does not exist; create it first")
    try:
        # Checking permissions is not enough: the file system may be read-only, or virtual like /proc.
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror or error}") from None
