"""`Hub`: files of a Hugging Face repository, for models without a manifest in the Hub's registry.

The Hub's registry rejects split weights, but the same host lists and serves a repository's files.
API: https://huggingface.co/docs/hub/api
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urljoin

from msgspec import Struct

from chaski.errors import ModelNotFoundError, OptionError, RegistryError
from chaski.formats.bounded_json import TooManyValuesError, load_json
from chaski.names import DEFAULT_TAG, Digest, ModelName
from chaski.store.http import host_of
from chaski.store.registry import Registry

__all__ = ["Hub", "HubFile", "HubModel", "SplitModel"]

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')
_USUAL = "Q4_K_M"
_PROJECTORS = ("f16", "bf16", "f32")  # the most common type first
_MAX_PAGES = 50
_MAX_PAGE_BYTES = 8 << 20
_MAX_PAGE_VALUES = 200_000
_MAX_LISTED = 10  # maximum candidates in an error
_LARGEST = 1 << 50  # bytes of a file; far beyond any disk


class HubFile(Struct, frozen=True):
    """A large file of a repository: its path, its size in bytes and its SHA-256."""

    path: str
    size: int
    digest: Digest


class SplitModel(Struct, frozen=True):
    """The files of a split model, in order, and its projector if the repository contains one."""

    parts: tuple[HubFile, ...]
    projector: HubFile | None = None

    @property
    def files(self) -> tuple[HubFile, ...]:
        return (*self.parts, self.projector) if self.projector else self.parts


class HubModel(Struct, frozen=True):
    """A GGUF file of a repository, in one part or several: its path without numbers and suffix."""

    path: PurePosixPath
    parts: tuple[HubFile, ...]

    @property
    def num_bytes(self) -> int:
        """The size of all parts."""
        return sum(part.size for part in self.parts)


class Hub:
    """The repository named by a model. Several threads may call its methods."""

    def __init__(self, registry: Registry) -> None:
        name = registry.name
        self._registry = registry
        self._home = f"{name.scheme}://{name.host}"
        self._repository = f"{name.namespace}/{name.model}"
        self._addresses: dict[Digest, str] = {}

    def split_model(self) -> SplitModel:
        """Find the parts selected by the tag of the name.

        The tag is a whole file name, or a type such as `Q4_K_M` at the end of the file or folder name. Raises
        ModelNotFoundError, listing the candidates, if nothing matches, and RegistryError.
        """
        files = list(self._files())
        found = SplitModel(_chosen(files, self._registry.name), _projector(files))
        self._addresses = {file.digest: self._address(file) for file in found.files}
        return found

    def _address(self, file: HubFile) -> str:
        return f"{self._home}/{self._repository}/resolve/main/{quote(file.path)}"

    def models(self) -> list[HubModel]:
        """Return the models of the repository, the smallest first, without projectors.

        Split files with a missing part are left out. Raises ModelNotFoundError if nothing is left, and
        RegistryError.
        """
        files = [file for file in self._files() if file.path.lower().endswith(".gguf")]
        found = [HubModel(PurePosixPath(file.path[: -len(".gguf")]), (file,)) for file in files]
        found = [model for model in found if not _PART.fullmatch(f"{model.path.name}.gguf")]
        for stem, parts in _groups(files).items():
            with suppress(RegistryError):
                found.append(HubModel(stem, _whole(stem, parts)))
        found = [model for model in found if not _is_no_model(model.path.name.lower())]
        if not found:
            raise ModelNotFoundError(f"{self._repository} has no GGUF files of models")
        self._addresses = {part.digest: self._address(part) for model in found for part in model.parts}
        return sorted(found, key=lambda model: (model.num_bytes, model.path))

    def beginning(self, file: HubFile, num_bytes: int) -> bytes:
        """Return the first bytes of a file that `models` listed. Raises RegistryError."""
        end = min(num_bytes, file.size)
        data = b""
        with self.blob(file.digest, 0, end, file.size) as (begin, pieces):
            for piece in pieces:
                data += piece
                if len(data) >= end:  # a server without ranges sends the whole file
                    break
        if begin or len(data) < end:
            raise RegistryError(f"{self._repository} sent {len(data)} of {end} bytes of {file.path}")
        return data[:end]

    @contextmanager
    def blob(self, digest: Digest, begin: int, end: int, size: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Provide the bytes of a file from `begin` to `end`, like `Registry.blob`."""
        with self._registry.piece(self._addresses[digest], begin, end, size) as found:
            yield found

    def _files(self) -> Iterator[HubFile]:
        url: str | None = f"{self._home}/api/models/{self._repository}/tree/main?recursive=true"
        for _ in range(_MAX_PAGES):
            if url is None:
                return
            with self._registry.get(url, {"Accept": "application/json"}) as reply:
                if reply.status != 200:
                    raise RegistryError(f"{host_of(url)} answered {reply.status} for the list of files")
                entries = _json(reply.read(_MAX_PAGE_BYTES), host_of(url))
                following = _NEXT.search(reply.headers.get("link", ""))
                url = urljoin(url, following[1]) if following else None
            yield from filter(None, map(_file, entries))
        raise RegistryError(f"{self._repository} lists its files on more than {_MAX_PAGES} pages")


def _json(data: bytes, host: str) -> list[Any]:
    try:
        found = load_json(data, _MAX_PAGE_VALUES)
    except (ValueError, RecursionError, TooManyValuesError) as error:
        raise RegistryError(f"{host} sent a file list that cannot be read: {error}") from None
    if not isinstance(found, list):
        raise RegistryError(f"{host} sent a file list that is not a JSON list")
    return found


def _file(entry: Any) -> HubFile | None:
    """Parse an entry of the list. Return None for folders, small files and invalid entries."""
    large = entry.get("lfs") if isinstance(entry, Mapping) else None
    if not isinstance(large, Mapping):
        return None
    path, size, digest = entry.get("path"), large.get("size"), large.get("oid")
    if not isinstance(path, str) or not isinstance(digest, str):
        return None
    if type(size) is not int or not 0 <= size <= _LARGEST:
        return None
    try:
        return HubFile(path, size, Digest.parse(f"sha256:{digest.removeprefix('sha256:')}"))
    except OptionError:
        return None


def _chosen(files: Sequence[HubFile], name: ModelName) -> tuple[HubFile, ...]:
    """Return the parts of the file that the tag selects, preferring an exact name."""
    groups = _groups(files)
    wanted = _USUAL if name.tag == DEFAULT_TAG else name.tag
    found = [stem for stem in groups if _means(wanted, stem)]
    if not found and name.tag == DEFAULT_TAG and len(groups) == 1:
        found = list(groups)
    if not found:
        listed = ", ".join(stem.name for stem in list(groups)[:_MAX_LISTED]) or "none"
        raise ModelNotFoundError(
            f"{name.namespace}/{name.model} has no GGUF file in parts for the tag {name.tag!r}; "
            f"it has: {listed}"
        )
    stem = min(found, key=lambda stem: (len(stem.name), str(stem)))
    return _whole(stem, groups[stem])


def _groups(files: Sequence[HubFile]) -> dict[PurePosixPath, dict[tuple[int, int], HubFile]]:
    """Return the parts of each split file by path without numbers, then by part number and count."""
    groups: dict[PurePosixPath, dict[tuple[int, int], HubFile]] = {}
    for file in files:
        path = PurePosixPath(file.path)
        if match := _PART.fullmatch(path.name):
            place = int(match["number"]), int(match["count"])
            groups.setdefault(path.with_name(match["stem"]), {})[place] = file
    return dict(sorted(groups.items()))


def _means(tag: str, stem: PurePosixPath) -> bool:
    """Return whether a tag matches a file name, its end, or the folder of the file."""
    wanted = tag.lower()
    if match := _PART.fullmatch(wanted):
        wanted = match["stem"]
    wanted = wanted.removesuffix(".gguf")
    name = stem.name.lower()
    return wanted in (name, stem.parent.name.lower()) or name.endswith((f"-{wanted}", f".{wanted}"))


def _whole(stem: PurePosixPath, parts: Mapping[tuple[int, int], HubFile]) -> tuple[HubFile, ...]:
    """Return all parts, in order. Raises RegistryError if a part is missing or the counts differ."""
    _, count = max(parts)
    missing = [number for number in range(1, count + 1) if (number, count) not in parts]
    if missing or len(parts) != count:
        problem = f"part {missing[0]} of {count} is missing" if missing else "files of two ways to split it"
        raise RegistryError(f"{stem} cannot be pulled: {problem}")
    return tuple(parts[number, count] for number in range(1, count + 1))


def _projector(files: Sequence[HubFile]) -> HubFile | None:
    """Return the projector of a vision or audio model, in the most common type of those available."""
    found = [file for file in files if _is_projector(PurePosixPath(file.path).name.lower())]
    return min(found, key=lambda file: (_order(file.path), file.path), default=None)


def _is_projector(name: str) -> bool:
    return "mmproj" in name and name.endswith(".gguf")


def _is_no_model(name: str) -> bool:
    """Return whether a GGUF file is known by its name to be part of a model, or data about it."""
    return any(word in name for word in ("mmproj", "imatrix"))


def _order(path: str) -> int:
    words = re.split(r"[-_.]", PurePosixPath(path).name.lower())
    return next((place for place, word in enumerate(_PROJECTORS) if word in words), len(_PROJECTORS))
