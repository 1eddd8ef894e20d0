"""`add_adapter`: stores a recipe's LoRA adapter as GGUF blobs that fit the model."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from chaski.errors import AdapterError, ModelNotFoundError, OptionError
from chaski.names import Digest, ModelName
from chaski.store.model import read_model
from chaski.store.progress import StoreProgress
from chaski.store.recipe import CheckpointFiles, ModelSource
from chaski.store.rewrite import Note, bring, folder_of, rewrite, written
from chaski.store.store import Store
from chaski.store.weights import inspect

if TYPE_CHECKING:
    from chaski.formats.gguf import GGUFFile

__all__ = ["OpenModel", "add_adapter", "check_fits", "convert_folder", "open_plainly"]

OpenModel: TypeAlias = "Callable[[Path], GGUFFile]"
"""Opens a model's GGUF file with its tensors renamed to the names used by adapters."""


def open_plainly(path: Path) -> GGUFFile:
    """Open the file of a model with its own tensor names."""
    from chaski.formats.gguf import open_gguf

    return open_gguf(path)


def add_adapter(
    store: Store, source: ModelSource, base: Path, link: bool = False, open_model: OpenModel = open_plainly
) -> Generator[StoreProgress, None, list[Digest]]:
    """Store the adapters of a source as blobs; return their digests in order.

    A PEFT folder is converted. A model of the store provides all its adapters.
    base: the GGUF file of the model. Raises AdapterError for an adapter that does not fit, and the errors of
    `convert_adapter` and `open_gguf`.
    """
    blobs = store.blobs
    if isinstance(source, ModelName):
        found = read_model(store, store.entry(source)).adapters
        if not found:
            raise OptionError(f"model '{source.shown}' has no adapter")
        for path in found:
            check_fits(path, base, source.shown, open_model)
        return [Digest.parse(path.name) for path in found]
    if isinstance(source, CheckpointFiles):
        with folder_of(blobs, source, "adapter") as folder:
            if source.first_part is not None:
                return (yield from add_adapter(store, folder / source.first_part, base, link, open_model))
            return [(yield from _converted(store, folder, base, open_model))]
    path = blobs.path(source) if isinstance(source, Digest) else source
    if path.is_dir():
        return [(yield from _converted(store, path, base, open_model))]
    yield StoreProgress("parsing GGUF")
    check_fits(path, base, path.name, open_model)
    weights = inspect(path)
    if weights.is_split:
        return [(yield from rewrite(blobs, path, weights, None))]
    if path.parent == blobs.folder:
        return [Digest.parse(path.name)]
    return [(yield from bring(blobs, path, link))]


def check_fits(adapter: Path, base: Path, label: str, open_model: OpenModel = open_plainly) -> None:
    """Check the header and all values of an adapter. Messages call it `label`.

    Raises AdapterError if the file is not an adapter, contains non-finite values or was made for another
    model, and the errors of `open_gguf`.
    """
    from chaski.formats.adapter import check_adapter, check_finite, open_adapter

    try:
        with open_adapter(adapter) as opened, open_model(base) as file:
            check_adapter(opened, file)
            check_finite(opened)
    except AdapterError as error:
        text = str(error).replace(str(adapter), label).replace(base.name, "the model")
        raise AdapterError(text) from None


def convert_folder(folder: Path, target: Path, base: Path, open_model: OpenModel = open_plainly) -> None:
    """Convert a PEFT folder. Its config.json, if present, describes the model better than the GGUF file."""
    from chaski.convert.adapter import convert_adapter

    if (folder / "config.json").is_file():
        convert_adapter(folder, target, folder)
        return
    with open_model(base) as file:
        convert_adapter(folder, target, file)


def _converted(
    store: Store, folder: Path, base: Path, open_model: OpenModel
) -> Generator[StoreProgress, None, Digest]:
    def write(target: Path, note: Note) -> None:
        from chaski.convert.adapter import is_adapter

        if not is_adapter(folder):
            raise ModelNotFoundError(f"{folder.name}: no adapter_config.json; PEFT's folders have one")
        convert_folder(folder, target, base, open_model)
        check_fits(target, base, folder.name, open_model)

    return (yield from written(store.blobs, "converting adapter", write))
