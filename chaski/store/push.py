"""`push`: uploads a model of the store to the registry in its name."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from pathlib import Path

from chaski.errors import OptionError, RegistryError
from chaski.names import ModelName
from chaski.store.download import Pace
from chaski.store.durable import store_errors
from chaski.store.http import Access, TemporaryError
from chaski.store.manifest import ManifestLayer
from chaski.store.progress import StoreProgress
from chaski.store.registry import Registry
from chaski.store.store import Store

__all__ = ["push"]

_PIECE_BYTES = 1 << 18


def push(
    store: Store, name: ModelName, access: Access | None = None, pace: Pace | None = None
) -> Generator[StoreProgress, None, None]:
    """Send the blobs that the registry lacks, then the manifest, byte for byte.

    The registry can reuse a blob that came from another of its models. An interrupted upload resumes at the
    position that the registry reports. Raises ModelNotFoundError, RegistryError, AccessDeniedError,
    StoreError, or OptionError for a bundled model.
    """
    yield StoreProgress("retrieving manifest")
    entry, manifest = store.entry(name), store.manifest_bytes(name)
    if entry.bundled is not None:
        raise OptionError(f"'{entry.name.shown}' is a part of chaski; copy it to a name of your own")
    with Registry(name, access or Access()) as registry, store.adding():
        for layer in dict.fromkeys(entry.manifest.blobs):
            status = f"pushing {layer.digest.short}"
            yield StoreProgress(status, layer.digest, layer.size)
            for sent in _push_layer(registry, store.blobs.path(layer.digest), layer, pace or Pace()):
                yield StoreProgress(status, layer.digest, layer.size, sent)
            yield StoreProgress(status, layer.digest, layer.size, layer.size)
        yield StoreProgress("pushing manifest")
        registry.put_manifest(manifest)
    yield StoreProgress("success")


def _push_layer(registry: Registry, path: Path, layer: ManifestLayer, pace: Pace) -> Iterator[int]:
    """Upload a blob unless the registry has it; repeatedly yield the number of bytes sent."""
    if registry.has_blob(layer.digest):
        return
    url = registry.begin_upload(layer.digest, _repository(registry.name, layer))
    if url is None:
        return
    position, tries = 0, 0
    while position < layer.size:
        end = min(position + pace.send_bytes, layer.size)
        try:
            url = registry.upload(url, position, end, _pieces(path, position, end))
            position, tries = end, 0
        except TemporaryError as error:
            tries += 1
            if tries >= pace.tries:
                raise RegistryError(f"max retries exceeded: {error}") from None
            time.sleep(pace.pause_seconds * 2 ** (tries - 1))
            position, url = _resume(registry, layer, url)
        yield position
    registry.finish_upload(url, layer.digest)


def _resume(registry: Registry, layer: ManifestLayer, url: str) -> tuple[int, str]:
    """Return the position and address at which to resume an interrupted upload."""
    try:
        return registry.uploaded(url)
    except RegistryError:
        begun = registry.begin_upload(layer.digest, None)
        if begun is None:
            raise RegistryError("the registry mounted a blob, but no mount was requested") from None
        return 0, begun


def _repository(name: ModelName, layer: ManifestLayer) -> str | None:
    """Return the repository of the same registry that a layer came from, if any."""
    host, _, path = (layer.source or "").partition("/")
    return path.rpartition(":")[0] if host == name.host else None


def _pieces(path: Path, begin: int, end: int) -> Iterator[bytes]:
    with store_errors("a blob cannot be read"), path.open("rb") as file:
        file.seek(begin)
        while begin < end:
            piece = file.read(min(_PIECE_BYTES, end - begin))
            if not piece:
                raise OSError(f"it ends at byte {begin}")
            begin += len(piece)
            yield piece
