"""The files of a model on every node: read where they are, or pulled once."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from chaski.errors import ModelNotFoundError, OptionError
from chaski.names import Digest, ModelName
from chaski.store.pull import pull
from chaski.store.store import Store

__all__ = ["SharedFile"]


class SharedFile(Struct, frozen=True):
    """A file as the server has it: where, and how large; and a model of the store that it is of."""

    path: str
    num_bytes: int
    model: str | None = None

    @classmethod
    def of(cls, path: Path) -> SharedFile:
        """Describe a file that is here."""
        return cls(str(path.absolute()), path.stat().st_size, _model_with(path.name))

    def find(self, store: Store) -> Path:
        """Return where this node has the file: at the same path, in its own store, or there after pulling it.

        What is pulled is hashed, and two that pull the same file at once wait for one another. Raises
        ModelNotFoundError where it is nowhere, and what pulling raises.
        """
        path = Path(self.path)
        if path.is_file() and path.stat().st_size == self.num_bytes:
            return path
        try:
            blob = store.blobs.path(Digest.parse(path.name))
        except OptionError:
            blob = None
        if blob is not None and not blob.is_file() and self.model is not None:
            for _ in pull(store, ModelName.parse(self.model)):
                pass
        if blob is not None and blob.is_file():
            return blob
        raise ModelNotFoundError(
            f"{self.path} is not on this node; give all nodes one folder of models (OLLAMA_MODELS), or serve "
            "a model that each of them can pull"
        )


def _model_with(name: str) -> str | None:
    """Return a model of the store that has the blob of a file of this name."""
    for entry in Store.default().entries():
        if any(layer.digest.file_name == name for layer in entry.manifest.blobs):
            return str(entry.name)
    return None
