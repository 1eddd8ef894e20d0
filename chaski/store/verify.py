"""`verify`: every blob of the store hashed again, and compared with what manifests and names say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chaski.errors import ChaskiError
from chaski.names import Digest, ModelName
from chaski.store.store import Store

__all__ = ["Finding", "verify"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of a blob, or of a manifest, which has no digest. problem: None where all is well.

    models: the names of the models that it belongs to.
    """

    digest: Digest | None
    size: int
    problem: str | None
    models: tuple[str, ...]


def verify(store: Store, names: Sequence[ModelName] = ()) -> Iterator[Finding]:
    """Check the models of these names, or all of the store with the blobs that belong to none.

    Reads every byte and changes nothing. Raises ModelNotFoundError for a name that is not there.
    """
    users: dict[Digest, list[str]] = {} if names else {digest: [] for digest in store.blobs}
    sizes: dict[Digest, int] = {}
    for name in names or list(store.names()):
        try:
            entry = store.entry(name)
        except ChaskiError as error:
            if names:
                raise
            yield Finding(None, 0, str(error), (name.short,))
            continue
        for layer in dict.fromkeys(entry.manifest.blobs):
            users.setdefault(layer.digest, []).append(entry.name.short)
            sizes[layer.digest] = layer.size
    for digest, models in users.items():
        size = store.blobs.size(digest)
        problem = _problem(store, digest, size, sizes.get(digest))
        yield Finding(digest, size or 0, problem, tuple(models))


def _problem(store: Store, digest: Digest, size: int | None, wanted: int | None) -> str | None:
    if size is None:
        return "missing"
    if wanted is not None and size != wanted:
        return f"{size} bytes instead of {wanted}"
    return None if store.blobs.is_intact(digest) else "damaged: its content has another digest"
