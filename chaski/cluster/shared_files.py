"""The files of a model on each node: read from a shared path, or pulled once."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from chaski.errors import ModelNotFoundError, OptionError
from chaski.names import Digest, ModelName
from chaski.store.pull import pull
from chaski.store.store import Store

__all__ = ["SharedFile"]


class SharedFile(Struct, frozen=True):
    """A file on the server: its path, its size, and a stored model that contains it."""

    path: str
    num_bytes: int
    model: str | None = None

    @classmethod
    def of(cls, path: Path) -> SharedFile:
        """Describe a file on this machine."""
        return cls(str(path.absolute()), path.stat().st_size, _model_with(path.name))

    def find(self, store: Store) -> Path:
        """Return this node's path of the file: the same path, or its own store, pulling the model if needed.

        Pulled files are hashed, and concurrent pulls of the same file wait for each other. Raises
        ModelNotFoundError if the file is not found, and the errors of pulling.
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
    """Return a stored model that contains the blob with this file name."""
    for entry in Store.default().entries():
        if any(layer.digest.file_name == name for layer in entry.manifest.blobs):
            return str(entry.name)
    return None
