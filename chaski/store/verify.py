"""`verify`: hashes all blobs of the store again and compares them with their manifests and names.

Damaged blobs are renamed and thus count as missing, because pull, create and uploads trust existing blobs.
Intact blobs are recorded, see `chaski.store.verified`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from chaski.errors import ChaskiError, ModelNotFoundError, StoreError
from chaski.names import Digest, ModelName
from chaski.store.blobs import hash_file
from chaski.store.lock import hold_deleting
from chaski.store.store import Entry, Store
from chaski.store.verified import note_verified

__all__ = ["Finding", "verify"]


class Finding(Struct, frozen=True):
    """The state of a blob, or of a manifest, which has no digest.

    problem: a description, or None if the file is intact.

    models: the names of the models that use it.
    is_aside: whether the damaged blob was renamed.
    """

    digest: Digest | None
    size: int
    problem: str | None
    models: tuple[str, ...]
    is_aside: bool = False


def verify(store: Store, names: Sequence[ModelName] = ()) -> Iterator[Finding]:
    """Check the named models, or the whole store including unused blobs.

    Reads every byte. Renames damaged blobs if the store is writable and no process is adding to it. Raises
    ModelNotFoundError for an unknown name.
    """
    users: dict[Digest, list[str]] = {} if names else {digest: [] for digest in store.blobs}
    sizes: dict[Digest, int] = {}
    for name in names or list(store.names()):
        try:
            entry = store.entry(name)
        except ChaskiError as error:
            if names:
                raise
            if isinstance(error, ModelNotFoundError):
                continue  # removed meanwhile
            yield Finding(None, 0, str(error), (name.short,))
            continue
        if entry.bundled is not None:
            yield _bundled(entry)
            continue
        for layer in dict.fromkeys(entry.manifest.blobs):
            users.setdefault(layer.digest, []).append(entry.name.short)
            sizes[layer.digest] = layer.size
    for digest, models in users.items():
        finding = _checked(store, digest, sizes.get(digest), tuple(models))
        if finding.problem == "missing":
            finding = replace(finding, models=_users_now(store, digest, models))
            if not finding.models:
                continue  # it was removed meanwhile, as its models were
        yield finding


def _users_now(store: Store, digest: Digest, models: Iterable[str]) -> tuple[str, ...]:
    """Return the models that still use the blob."""
    found = []
    for model in models:
        with suppress(ChaskiError):  # removed, or damaged meanwhile
            manifest = store.entry(ModelName.parse(model)).manifest
            if digest in (layer.digest for layer in manifest.blobs):
                found.append(model)
    return tuple(found)


def _checked(store: Store, digest: Digest, wanted: int | None, models: tuple[str, ...]) -> Finding:
    """Check a blob that should have `wanted` bytes, or any size if None."""
    path = store.blobs.path(digest)
    missing = Finding(digest, 0, "missing", models)
    try:
        seen = path.stat()
    except FileNotFoundError:
        return missing
    problem = "damaged: its content has another digest"
    if wanted is not None and seen.st_size != wanted:
        problem = f"{seen.st_size} bytes instead of {wanted}"
    else:
        try:
            if store.blobs.is_intact(digest):
                note_verified(path, seen)
                return Finding(digest, seen.st_size, None, models)
        except StoreError:
            if path.is_file():
                raise
            return missing  # since a moment ago
    return Finding(digest, seen.st_size, problem, models, _set_aside(store, digest, seen))


def _set_aside(store: Store, digest: Digest, seen: os.stat_result) -> bool:
    try:
        with hold_deleting(store.root) as is_alone:
            return is_alone and store.blobs.set_aside(digest, seen)
    except StoreError:  # of somebody else, or on a disk that is read only
        return False


def _bundled(entry: Entry) -> Finding:
    assert entry.bundled is not None
    (weights,) = entry.manifest.of_kind("model")
    is_intact = hash_file(entry.bundled.path) == weights.digest
    problem = None if is_intact else "damaged: install chaski again"
    return Finding(weights.digest, weights.size, problem, (entry.name.short,))
