"""`pull`: a model from its registry into the store."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

from chaski.errors import ChaskiError, FormatError, RegistryError, UnsupportedError
from chaski.names import ModelName
from chaski.store.blobs import SMALL
from chaski.store.download import Pace, download
from chaski.store.http import Access
from chaski.store.manifest import Manifest, ManifestLayer
from chaski.store.parts import forget_parts
from chaski.store.progress import StoreProgress
from chaski.store.registry import Registry
from chaski.store.store import Store
from chaski.store.weights import inspect

__all__ = ["pull"]

_WEIGHTS = ("model", "projector", "adapter", "draft")


def pull(
    store: Store, name: ModelName, access: Access | None = None, pace: Pace | None = None
) -> Generator[StoreProgress, None, None]:
    """Fetch a model and all of its blobs that are not here; closing the iterator stops it.

    The manifest is kept byte for byte. The name means the new model only when all of it is here and every
    blob that came was hashed; until then it means what it meant. Blobs of the old model that no other uses
    are deleted. Raises ModelNotFoundError, RegistryError, DigestError or StoreError.
    """
    yield StoreProgress("pulling manifest")
    with Registry(name, access or Access()) as registry:
        data = registry.manifest()
        manifest = _parsed(data)
        with store.adding():
            replaced = _layers(store, name)
            for layer in dict.fromkeys(manifest.blobs):
                yield from _pull_layer(registry, store, layer, pace or Pace())
            yield StoreProgress("verifying sha256 digest")
            yield StoreProgress("writing manifest")
            store.put(name, data)
    if replaced:
        yield StoreProgress("removing unused layers")
        store.remove_unused(layer.digest for layer in replaced)
    yield StoreProgress("success")


def _pull_layer(
    registry: Registry, store: Store, layer: ManifestLayer, pace: Pace
) -> Iterator[StoreProgress]:
    status = f"pulling {layer.digest.short}"
    if not _is_here(store, layer):
        yield StoreProgress(status, layer.digest, layer.size)
        for completed in download(registry, store.blobs, layer, pace):
            yield StoreProgress(status, layer.digest, layer.size, completed)
    else:
        # Parts of a process that was killed when the blob had its name already.
        forget_parts(store.blobs.path(layer.digest))
    yield StoreProgress(status, layer.digest, layer.size, layer.size)


def _is_here(store: Store, layer: ManifestLayer) -> bool:
    """Return whether a blob need not be fetched. A damaged one is set aside, where that is cheap to see.

    Texts are hashed; weights are when they cannot be opened. All else `verify` finds and sets aside.
    """
    blobs = store.blobs
    if blobs.size(layer.digest) != layer.size:
        return False
    is_text = layer.size <= SMALL and layer.kind not in _WEIGHTS
    is_doubtful = is_text or (layer.kind in _WEIGHTS and not _opens(blobs.path(layer.digest)))
    if not is_doubtful or blobs.is_intact(layer.digest):
        return True
    blobs.set_aside(layer.digest)
    return False


def _opens(path: Path) -> bool:
    try:
        inspect(path)
    except UnsupportedError:
        return True
    except ChaskiError:
        return False
    return True


def _parsed(data: bytes) -> Manifest:
    try:
        return Manifest.parse(data)
    except FormatError as error:
        raise RegistryError(f"pull model manifest: {error}") from None


def _layers(store: Store, name: ModelName) -> tuple[ManifestLayer, ...]:
    """Return the layers that the name has so far."""
    try:
        return store.entry(name).manifest.blobs
    except ChaskiError:
        return ()
