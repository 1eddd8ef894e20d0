"""`Candidate`: a file that could be run: in a folder, in the model store, or in a repository."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from chaski.errors import ChaskiError, ModelNotFoundError, UnsupportedError
from chaski.formats.gguf import has_whole_header, open_gguf, part_paths
from chaski.model.metadata import check_is_model
from chaski.names import ModelName
from chaski.pasted import quantization
from chaski.store.http import Access
from chaski.store.hub import Hub, HubModel
from chaski.store.model import find_model
from chaski.store.registry import Registry
from chaski.store.store import Store

__all__ = ["Candidate", "is_hub", "local_candidates", "remote_candidates"]

_FIRST_BYTES = 1 << 20
_MOST_BYTES = 1 << 26
_HUBS = ("hf.co", "huggingface.co")


class Candidate(Struct, frozen=True):
    """A file of a model, or all parts of it.

    name     what `chaski run` takes
    type     the type in the file's name; "" if it has none
    path     the file here; for a file of a repository, one that begins like the repository's smallest file
    beyond   bytes of this file beyond those of the file at `path`
    is_here  True for a file of this machine
    """

    name: str
    type: str
    num_bytes: int
    path: Path
    beyond: int = 0
    is_here: bool = True


def local_candidates(where: str) -> list[Candidate]:
    """Return the models in a folder, a single file, or all stored models that differ in their tags.

    Raises ModelNotFoundError.
    """
    path = Path(where)
    if path.is_dir():
        found = sorted(each for each in path.rglob("*.gguf") if each.is_file())
        models = [each for each in found if _is_model(each)]
        if not models:
            raise ModelNotFoundError(f"{where} is a folder without a GGUF file of a model")
        return _smallest_first(_of_file(str(each), each) for each in models)
    stored = find_model(where)
    if stored.name is None:
        return [_of_file(where, stored.path)]
    store = Store.default()
    others = [name for name in store.all_names() if _same_but_tag(name, stored.name)]
    return _smallest_first(_of_file(name.short, find_model(name.short, store).path) for name in others)


@contextmanager
def remote_candidates(name: ModelName, access: Access) -> Iterator[list[Candidate]]:
    """List the models in a repository of Hugging Face, with the header of the smallest one.

    Raises ModelNotFoundError, RegistryError, GGUFError.
    """
    with Registry(name, access) as registry, TemporaryDirectory(prefix="chaski-") as folder:
        hub = Hub(registry)
        models = hub.models()
        _write_beginning(hub, models[0], Path(folder))
        first = Path(folder) / _part_name(models[0], 0)
        repository = f"{name.host}/{name.namespace}/{name.model}"
        tags = [_quantization(model) for model in models]
        yield [
            Candidate(
                f"{repository}:{tag if tag and tags.count(tag) == 1 else f'{model.path.name}.gguf'}",
                tag,
                model.num_bytes,
                first,
                model.num_bytes - models[0].num_bytes,
                is_here=False,
            )
            for model, tag in zip(models, tags, strict=True)
        ]


def is_hub(name: ModelName) -> bool:
    """Return whether a name is one of Hugging Face's."""
    return name.host.lower() in _HUBS


def _write_beginning(hub: Hub, model: HubModel, folder: Path) -> None:
    """Write the headers of a model's parts into files of the right size, without the weights."""
    for number, part in enumerate(model.parts):
        num_bytes = _FIRST_BYTES
        path = folder / _part_name(model, number)
        path.write_bytes(hub.beginning(part, num_bytes))
        while not has_whole_header(path) and num_bytes < min(part.size, _MOST_BYTES):
            num_bytes *= 4
            path.write_bytes(hub.beginning(part, num_bytes))
        os.truncate(path, part.size)


def _part_name(model: HubModel, number: int) -> str:
    stem = model.path.name
    count = len(model.parts)
    return f"{stem}.gguf" if count == 1 else f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"


def _quantization(model: HubModel) -> str:
    """Return the quantization that the name of a file or of its folder ends with, or ""."""
    return quantization(model.path.name) or quantization(model.path.parent.name)


def _of_file(name: str, path: Path) -> Candidate:
    num_bytes = sum(part.stat().st_size for part in part_paths(path) if part.is_file())
    stem = path.stem.partition("-00001-of-")[0]
    return Candidate(name, quantization(stem), num_bytes, path)


def _is_model(path: Path) -> bool:
    """Return whether a file is a model, or the first part of one. Damaged files count, too."""
    if path != part_paths(path)[0]:
        return False
    try:
        with open_gguf(path) as file:
            check_is_model(file)
    except UnsupportedError:
        return False
    except ChaskiError:
        pass
    return True


def _same_but_tag(name: ModelName, other: ModelName) -> bool:
    return (name.host, name.namespace, name.model) == (other.host, other.namespace, other.model)


def _smallest_first(found: Iterator[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda each: (each.num_bytes, each.name))
