"""The files of a model on every node. Each node opens its own file and checks that it is the same one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from chaski.errors import ModelError, ModelNotFoundError

__all__ = ["SameFile"]

_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
_HEAD = 1 << 20
_SAMPLES, _SAMPLE = 256, 4096


class SameFile(Struct, frozen=True):
    """A file of one node: its path, its size, and a hash of its beginning and of many samples.

    The beginning of a model file contains everything except the weights; the samples distinguish weights.
    """

    path: str
    num_bytes: int
    fingerprint: str

    @classmethod
    def of(cls, path: Path) -> SameFile:
        """Describe a file of this node."""
        path = path.absolute()
        return cls(str(path), path.stat().st_size, _fingerprint(path))

    def find(self, folders: Sequence[Path]) -> Path:
        """Return this node's path of the file: the same path, or the file of that name in one of the folders.

        Raises ModelNotFoundError if no such file exists, and ModelError if only different ones exist.
        """
        path = Path(self.path)
        names = [path, *(folder / path.name for folder in folders)]
        places = [place for place in names if place.is_file()]
        for place in places:
            if place.stat().st_size == self.num_bytes and _fingerprint(place) == self.fingerprint:
                return place
        if places:
            raise ModelError(f"{places[0]} differs from the file of the same name on the serving machine")
        where = "its store" if _BLOB.fullmatch(path.name) else "a folder of models"
        raise ModelNotFoundError(
            f"{path} does not exist, and {path.name} is not in {where}: copy the file to the same path, or "
            "pull the model there"
        )


def _fingerprint(path: Path) -> str:
    """Return a hash of a file's size, its first MiB, and samples from there to its end."""
    size = path.stat().st_size
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        found.update(file.read(_HEAD))
        for sample in range(_SAMPLES):
            file.seek(max(0, (size - _SAMPLE) * (sample + 1) // _SAMPLES))
            found.update(file.read(_SAMPLE))
    return found.hexdigest()
