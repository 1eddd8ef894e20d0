"""`pull`: downloads a model from its registry into the store."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

from chaski.errors import ChaskiError, FormatError, RegistryError, StoreError, UnsupportedError
from chaski.names import Digest, ModelName
from chaski.store.blobs import SMALL
from chaski.store.bundled import check_free
from chaski.store.create import create, read_object
from chaski.store.download import BlobSource, Pace, download
from chaski.store.durable import make_folder, store_errors
from chaski.store.http import Access
from chaski.store.hub import Hub, HubFile, SplitModel
from chaski.store.manifest import Manifest, ManifestLayer, media_type
from chaski.store.parts import allocated, forget_parts
from chaski.store.progress import StoreProgress
from chaski.store.recipe import CheckpointFiles, Recipe
from chaski.store.registry import Registry, SplitModelError
from chaski.store.store import Store
from chaski.store.weights import inspect

__all__ = ["PART", "pull", "pull_layer"]

_WEIGHTS = ("model", "projector", "adapter", "draft")
PART = media_type("part")
"""The type of a file that is only fetched to make weights from it. Manifests never contain it."""


def pull(
    store: Store, name: ModelName, access: Access | None = None, pace: Pace | None = None
) -> Generator[StoreProgress, None, None]:
    """Fetch a model and its missing blobs. Closing the iterator stops the download.

    The manifest is stored byte for byte. The name refers to the old model until the new one is complete and
    every fetched blob was hashed. Blobs that only the old model used are then deleted. Split weights, for
    which the Hub has no manifest, are joined into one blob. Raises ModelNotFoundError, RegistryError,
    DigestError, StoreError, or OptionError for the name of a bundled model.
    """
    check_free(name)
    yield StoreProgress("pulling manifest")
    with Registry(name, access or Access()) as registry:
        try:
            data = registry.manifest()
        except SplitModelError:
            yield from _pull_split(store, name, Hub(registry), pace or Pace())
            return
        manifest = _parsed(data)
        with store.adding():
            replaced = _layers(store, name)
            for layer in dict.fromkeys(manifest.blobs):
                yield from pull_layer(registry, store, layer, pace or Pace())
            yield StoreProgress("verifying sha256 digest")
            yield StoreProgress("writing manifest")
            store.put(name, data)
    if replaced:
        yield StoreProgress("removing unused layers")
        store.remove_unused(layer.digest for layer in replaced)
    yield StoreProgress("success")


def _pull_split(store: Store, name: ModelName, hub: Hub, pace: Pace) -> Iterator[StoreProgress]:
    """Fetch the parts of a model as blobs and join them. Fetched parts are kept for the next attempt.

    The config of the model lists the parts, so that a complete model is not fetched again.
    """
    model = hub.split_model()
    replaced = _layers(store, name)
    if not _is_made_of(store, name, model):
        _require_room(store, model)
        with store.adding():
            for file in model.files:
                layer = ManifestLayer(PART, file.digest, file.size)
                yield from pull_layer(hub, store, layer, pace)
            for event in create(store, name, _recipe(model)):
                if event.status != "success":
                    yield event
        yield StoreProgress("removing unused layers")
        store.remove_unused([*(file.digest for file in model.files), *(layer.digest for layer in replaced)])
    yield StoreProgress("success")


def _recipe(model: SplitModel) -> Recipe:
    count = len(model.parts)
    names = (f"model-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1))
    parts = CheckpointFiles(dict(zip(names, _digests(model.parts), strict=True)))
    projectors = [] if model.projector is None else [model.projector.digest]
    return Recipe(sources=[parts, *projectors], split_from=_digests(model.files))


def _digests(files: tuple[HubFile, ...]) -> list[Digest]:
    return [file.digest for file in files]


def _is_made_of(store: Store, name: ModelName, model: SplitModel) -> bool:
    """Return whether the stored model was made of these files and is complete."""
    if store.locate(name) is None:
        return False
    try:
        entry = store.entry(name)
        made_of = read_object(store, entry.manifest.config).get("split_from")
    except ChaskiError:
        return False
    is_whole = all(_is_here(store, layer) for layer in entry.manifest.blobs)
    return is_whole and made_of == [str(digest) for digest in _digests(model.files)]


def _require_room(store: Store, model: SplitModel) -> None:
    """Raise StoreError if the parts and the joined file do not fit on the disk at the same time."""
    joined = sum(file.size for file in model.parts)
    with store_errors("cannot be used"):
        make_folder(store.blobs.folder)
        missing = [file for file in model.files if store.blobs.size(file.digest) != file.size]
        parts = sum(max(0, file.size - allocated(store.blobs.path(file.digest))) for file in missing)
        free = shutil.disk_usage(store.blobs.folder).free
    if parts + joined > free:
        raise StoreError(
            f"the model is in {len(model.parts)} parts: {parts} bytes are still to be fetched, and the "
            f"joined file takes {joined} more before the parts are deleted; the disk of the model store has "
            f"{free} free"
        )


def pull_layer(
    registry: BlobSource, store: Store, layer: ManifestLayer, pace: Pace
) -> Iterator[StoreProgress]:
    """Fetch a blob unless it is present, and report the progress."""
    status = f"pulling {layer.digest.short}"
    if not _is_here(store, layer):
        yield StoreProgress(status, layer.digest, layer.size)
        for completed in download(registry, store.blobs, layer, pace):
            yield StoreProgress(status, layer.digest, layer.size, completed)
    else:
        # Notes left by a process that was killed after it published the blob.
        forget_parts(store.blobs.path(layer.digest))
    yield StoreProgress(status, layer.digest, layer.size, layer.size)


def _is_here(store: Store, layer: ManifestLayer) -> bool:
    """Return whether a blob is present. Set a damaged blob aside if the damage is cheap to detect.

    Texts are always hashed, weights only if they cannot be opened. `verify` finds all other damage.
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
    """Return the layers of the model that currently has the name."""
    try:
        return store.entry(name).manifest.blobs
    except ChaskiError:
        return ()
