"""`Hub`: the files of a repository of Hugging Face's Hub, for models that its registry has no manifest for.

The Hub's registry refuses weights in parts. The same host lists the files of a repository and serves them.
API: https://huggingface.co/docs/hub/api
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urljoin

from msgspec import Struct

from chaski.errors import ModelNotFoundError, OptionError, RegistryError
from chaski.formats.bounded_json import TooManyValuesError, load_json
from chaski.names import DEFAULT_TAG, Digest, ModelName
from chaski.store.http import host_of
from chaski.store.registry import Registry

__all__ = ["Hub", "HubFile", "SplitModel"]

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')
_USUAL = "Q4_K_M"
_PROJECTORS = ("f16", "bf16", "f32")  # the most usual type first
_MAX_PAGES = 50
_MAX_PAGE_BYTES = 8 << 20
_MAX_PAGE_VALUES = 200_000
_MAX_LISTED = 10  # candidates that an error names
_LARGEST = 1 << 50  # bytes of a file; far beyond any disk


class HubFile(Struct, frozen=True):
    """A large file of a repository: its path there, its bytes, and its SHA-256."""

    path: str
    size: int
    digest: Digest


class SplitModel(Struct, frozen=True):
    """The files of a model in parts, in order, and those of its projector if the repository has one."""

    parts: tuple[HubFile, ...]
    projector: HubFile | None = None

    @property
    def files(self) -> tuple[HubFile, ...]:
        return (*self.parts, self.projector) if self.projector else self.parts


class Hub:
    """The repository that a model's name means. Its methods may be called from several threads."""

    def __init__(self, registry: Registry) -> None:
        name = registry.name
        self._registry = registry
        self._home = f"{name.scheme}://{name.host}"
        self._repository = f"{name.namespace}/{name.model}"
        self._addresses: dict[Digest, str] = {}

    def split_model(self) -> SplitModel:
        """Find the parts that the tag of the name means.

        The tag is a type such as `Q4_K_M`, at the end of the files' name or the name of their folder, or the
        file's name. Raises ModelNotFoundError with the candidates where it means none, and RegistryError.
        """
        files = list(self._files())
        found = SplitModel(_chosen(files, self._registry.name), _projector(files))
        revision = f"{self._home}/{self._repository}/resolve/main"
        self._addresses = {file.digest: f"{revision}/{quote(file.path)}" for file in found.files}
        return found

    @contextmanager
    def blob(self, digest: Digest, begin: int, end: int, size: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Give the bytes of a file from `begin` to `end`, as `Registry.blob` does."""
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
        raise RegistryError(f"{self._repository} has more files than {_MAX_PAGES} pages list")


def _json(data: bytes, host: str) -> list[Any]:
    try:
        found = load_json(data, _MAX_PAGE_VALUES)
    except (ValueError, RecursionError, TooManyValuesError) as error:
        raise RegistryError(f"{host} sent a list of files that cannot be read: {error}") from None
    if not isinstance(found, list):
        raise RegistryError(f"{host} sent a list of files that is no list")
    return found


def _file(entry: Any) -> HubFile | None:
    """Read an entry of the list; None for a folder, for a small file, and for what cannot be a file."""
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
    """Return the parts of the file that the tag means. One whose name has no more in it goes first."""
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
    """Return the parts of each split file, by its path without numbers; by number and count."""
    groups: dict[PurePosixPath, dict[tuple[int, int], HubFile]] = {}
    for file in files:
        path = PurePosixPath(file.path)
        if match := _PART.fullmatch(path.name):
            place = int(match["number"]), int(match["count"])
            groups.setdefault(path.with_name(match["stem"]), {})[place] = file
    return dict(sorted(groups.items()))


def _means(tag: str, stem: PurePosixPath) -> bool:
    """Return whether a tag means the files of a name: its end, all of it, or the folder that they are in."""
    wanted = tag.lower()
    if match := _PART.fullmatch(wanted):
        wanted = match["stem"]
    wanted = wanted.removesuffix(".gguf")
    name = stem.name.lower()
    return wanted in (name, stem.parent.name.lower()) or name.endswith((f"-{wanted}", f".{wanted}"))


def _whole(stem: PurePosixPath, parts: Mapping[tuple[int, int], HubFile]) -> tuple[HubFile, ...]:
    """Return all parts, in order. Raises RegistryError where one is missing or the counts differ."""
    _, count = max(parts)
    missing = [number for number in range(1, count + 1) if (number, count) not in parts]
    if missing or len(parts) != count:
        problem = f"part {missing[0]} of {count} is missing" if missing else "files of two ways to split it"
        raise RegistryError(f"{stem} cannot be pulled: {problem}")
    return tuple(parts[number, count] for number in range(1, count + 1))


def _projector(files: Sequence[HubFile]) -> HubFile | None:
    """Return the projector of a model that sees or hears; of several the most usual type."""
    found = [file for file in files if _is_projector(PurePosixPath(file.path).name.lower())]
    return min(found, key=lambda file: (_order(file.path), file.path), default=None)


def _is_projector(name: str) -> bool:
    return "mmproj" in name and name.endswith(".gguf")


def _order(path: str) -> int:
    words = re.split(r"[-_.]", PurePosixPath(path).name.lower())
    return next((place for place, word in enumerate(_PROJECTORS) if word in words), len(_PROJECTORS))
