"""`Store`: lists, copies and deletes the models of a folder, and lists the bundled models.

A model in the folder takes precedence over a bundled model of the same name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from msgspec import Struct

from chaski.env import Environment
from chaski.errors import ChaskiError, FormatError, ModelNotFoundError, OptionError, StoreError
from chaski.names import Digest, ModelName
from chaski.store.blobs import Blobs
from chaski.store.bundled import BundledModel, bundled_model, bundled_models, check_free, read_bundled
from chaski.store.durable import make_folder, publish, scratch, store_errors
from chaski.store.lock import hold_adding, hold_deleting
from chaski.store.manifest import MAX_MANIFEST_BYTES, Manifest

__all__ = ["Entry", "Store"]

_log = logging.getLogger(__name__)

_DEFAULT_FOLDER = "~/.ollama/models"
# Younger files may belong to a process that does not use these locks, such as Ollama's server.
_YOUNG_SECONDS = 3600
_STATE = ".state"


class Entry(Struct, frozen=True):
    """A model of the store.

    digest: digest of the manifest's bytes.
    modified: seconds since 1970.

    bundled: path inside the package; such a model may have no blobs in the folder.
    """

    name: ModelName
    manifest: Manifest
    digest: Digest
    modified: float
    bundled: BundledModel | None = None

    @property
    def size(self) -> int:
        return self.manifest.size


class Store:
    """A folder of models, which may not exist. Reading creates and changes no files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = Blobs(root / "blobs")
        self._manifests = root / "manifests"
        self._states = root / "chaski" / "states"

    @classmethod
    def default(cls) -> Store:
        """Return the store named by the environment, else the store in the home folder."""
        return cls(Path(Environment.read().models or _DEFAULT_FOLDER).expanduser())

    def entries(self) -> list[Entry]:
        """Return all models, newest first, with bundled models last.

        A model with an unreadable manifest is left out with a warning.
        """
        found = []
        for name in self.all_names():
            try:
                found.append(self.entry(name))
            except ChaskiError as error:
                _log.warning("%s is left out: %s", name.short, error)
        return sorted(found, key=lambda entry: (entry.bundled is None, entry.modified), reverse=True)

    def names(self) -> Iterator[ModelName]:
        """Yield the names of all manifests, sorted, ignoring other files."""
        for path in sorted(self._manifests.glob("*/*/*/*")):
            try:
                name = ModelName(*path.relative_to(self._manifests).parts)
            except OptionError:
                continue
            if path.is_file():
                yield name

    def all_names(self) -> list[ModelName]:
        """Return the names of all models, including bundled ones."""
        names = list(self.names())
        return names + [name for name in bundled_models() if self._in_folder(name) is None]

    def locate(self, name: ModelName) -> ModelName | None:
        """Return the stored spelling of a model name, ignoring case, or None."""
        found = self._in_folder(name)
        path = bundled_model(name) if found is None else None
        return found if path is None else ModelName.parse(path.stem)

    def entry(self, name: ModelName) -> Entry:
        """Return a model. Raises ModelNotFoundError, or StoreError if its manifest is damaged."""
        found = self._in_folder(name)
        if found is None:
            return _bundled_entry(name)
        data, modified = self._read(found)
        try:
            manifest = Manifest.parse(data)
        except FormatError as error:
            raise StoreError(f"the manifest of {found.shown} is damaged: {error}") from None
        return Entry(found, manifest, Digest(hashlib.sha256(data).hexdigest()), modified)

    def manifest_bytes(self, name: ModelName) -> bytes:
        """Return the unchanged manifest of a model. Raises the errors of `entry`."""
        entry = self.entry(name)
        return entry.manifest.encode() if entry.bundled else self._read(entry.name)[0]

    def adding(self) -> AbstractContextManager[None]:
        """Prevent deletion of blobs. Hold this from a model's first blob until its manifest is stored."""
        with store_errors("cannot be written"):
            make_folder(self.blobs.folder)
        return hold_adding(self.root)

    def put(self, name: ModelName, manifest: bytes) -> None:
        """Store a manifest under a name. All its blobs must exist. Call it within `adding`.

        Raises OptionError for the name of a bundled model.
        """
        check_free(name)
        missing = [layer for layer in Manifest.parse(manifest).blobs if self.blobs.size(layer.digest) is None]
        if missing:
            raise StoreError(f"blob {missing[0].digest.short} of {name.shown} is missing")
        path = self._path(self._own_letters(name))
        with store_errors(f"the manifest of {name.shown} cannot be written"):
            make_folder(path.parent)
            # The temporary file is among the blobs, because Ollama would read a leftover among manifests as a
            # broken one.
            with scratch(self.blobs.folder) as aside:
                aside.write_bytes(manifest)
                publish(aside, path)
        self._remove_state(name)

    def bring(self, entry: Entry) -> None:
        """Copy the blobs of a bundled model into the folder. Call it within `adding`."""
        if entry.bundled is not None:
            self.blobs.add(entry.bundled.config)
            self.blobs.add(entry.bundled.parameters)
            self.blobs.add_file(entry.bundled.path)

    def copy(self, source: ModelName, target: ModelName) -> None:
        """Give a model a second name, replacing any model of that name. Raises the errors of `put`."""
        check_free(target)
        with self.adding():
            self.bring(self.entry(source))
            self.put(target, self.manifest_bytes(source))

    def remove(self, name: ModelName) -> None:
        """Delete a model and the blobs that only it used. Raises OptionError for a bundled model."""
        found = self._in_folder(name)
        if found is None:
            _bundled_entry(name)
            raise OptionError(f"'{name.shown}' is a part of chaski and cannot be deleted")
        try:
            blobs = self.entry(found).manifest.blobs
        except StoreError:
            blobs = ()  # unknown with a damaged manifest; `prune` finds them
        with store_errors(f"{found.shown} cannot be deleted"):
            self._path(found).unlink(missing_ok=True)
        self._remove_state(found)
        self.remove_unused(layer.digest for layer in blobs)

    def freed_bytes(self, entries: Iterable[Entry]) -> dict[ModelName, int]:
        """Return for each stored model the bytes of the disk that its deletion frees.

        Blobs of several models stay, and so do blobs that are hard links to files outside the store.
        entries: all models of the store; those that are bundled are left out.
        """
        stored = [entry for entry in entries if entry.bundled is None]
        keeps_all = Environment.read().keeps_unused or len(stored) < sum(1 for _ in self.names())
        users = Counter(layer.digest for entry in stored for layer in set(entry.manifest.blobs))
        return {
            entry.name: sum(
                0 if keeps_all or users[layer.digest] > 1 else self.blobs.freed_bytes(layer.digest)
                for layer in set(entry.manifest.blobs)
            )
            for entry in stored
        }

    def state_path(self, name: ModelName) -> Path:
        """Return the path of the saved state of a model's initial conversation. The file may not exist.

        The file is deleted with the model, or when another model takes its name.
        """
        *folders, tag = self._own_letters(name).parts
        return self._states.joinpath(*folders) / f"{tag}{_STATE}"

    def make_state_path(self, name: ModelName) -> Path:
        """Return `state_path` after creating its folder, readable only by its owner. Raises StoreError."""
        path = self.state_path(name)
        with store_errors(f"the folder for the state of {name.shown} cannot be made"):
            folders = [each for each in path.parents if each.is_relative_to(self._states.parent)]
            for folder in reversed(folders):
                folder.mkdir(mode=0o700, exist_ok=True)
        return path

    def remove_unused(self, digests: Iterable[Digest]) -> None:
        """Delete unused blobs among these, unless the environment disables pruning.

        While another process adds to the store, nothing is deleted; a later `prune` finds the blobs.
        """
        if Environment.read().keeps_unused:
            return
        with hold_deleting(self.root) as is_alone:
            if is_alone and (used := self._used()) is not None:
                for digest in set(digests) - used:
                    self.blobs.remove(digest)
                self._remove_empty_folders()

    def prune(self) -> tuple[int, int]:
        """Delete unused blobs, unfinished downloads and states; return the number of files and bytes.

        Files younger than an hour are kept. Raises StoreError if a manifest is damaged, because its blobs are
        unknown, and while another process adds to the store.
        """
        if not self.blobs.folder.is_dir():
            return 0, 0
        with hold_deleting(self.root) as is_alone:
            if not is_alone:
                raise StoreError("another process is adding models; prune when it is done")
            used = self._used()
            if used is None:
                raise StoreError(
                    "a manifest is damaged, so it is not known what is unused; see `chaski verify`"
                )
            unused = self._unused_files({digest.file_name for digest in used})
            removed = [_remove(path) for path in (*unused, *self._states_of_nobody())]
            self._remove_empty_folders()
        sizes = [size for size in removed if size is not None]
        return len(sizes), sum(sizes)

    def _read(self, found: ModelName) -> tuple[bytes, float]:
        """Return the bytes and modification time of a manifest. Raises ModelNotFoundError if it is gone."""
        path = self._path(found)
        with store_errors(f"the manifest of {found.shown} cannot be read"):
            try:
                file = path.open("rb")
            except FileNotFoundError:  # deleted just now
                raise _not_found(found) from None
            with file:
                data = file.read(MAX_MANIFEST_BYTES + 1)
                modified = os.fstat(file.fileno()).st_mtime
        if len(data) > MAX_MANIFEST_BYTES:
            raise StoreError(f"the manifest of {found.shown} is longer than {MAX_MANIFEST_BYTES} bytes")
        return data, modified

    def _unused_files(self, used: set[str]) -> Iterator[Path]:
        for path in sorted(self.blobs.folder.iterdir()):
            try:
                is_young = time.time() - path.lstat().st_mtime < _YOUNG_SECONDS
            except FileNotFoundError:  # moved just now by a program without these locks
                continue
            if path.name not in used and not is_young and not path.is_dir():
                yield path

    def _used(self) -> set[Digest] | None:
        """Return the blobs of all models, or None if a manifest is unreadable."""
        used: set[Digest] = set()
        for name in self.names():
            try:
                used.update(layer.digest for layer in self.entry(name).manifest.blobs)
            except ModelNotFoundError:
                continue  # deleted just now
            except StoreError as error:
                _log.warning("no blobs were deleted: %s", error)
                return None
        return used

    def _remove_empty_folders(self) -> None:
        for pattern in ("*/*/*", "*/*", "*"):
            for folder in self._manifests.glob(pattern):
                if folder.is_dir() and not folder.is_symlink():
                    with suppress(OSError):  # it is not empty, or has just been removed
                        folder.rmdir()

    def _in_folder(self, name: ModelName) -> ModelName | None:
        """Return the stored spelling of a model in the folder, or None."""
        found = self._own_letters(name)
        return found if self._path(found).is_file() else None

    def _own_letters(self, name: ModelName) -> ModelName:
        """Return the name with each part spelled as on disk, if it exists."""
        folder, parts = self._manifests, []
        for part in name.parts:
            part = _in_own_letters(folder, part)
            folder /= part
            parts.append(part)
        return name.with_parts(tuple(parts))

    def _remove_state(self, name: ModelName) -> None:
        with store_errors(f"the state of {name.shown} cannot be deleted"):
            self.state_path(name).unlink(missing_ok=True)

    def _states_of_nobody(self) -> Iterator[Path]:
        """Yield the states of models that another program has deleted."""
        for path in sorted(self._states.glob(f"*/*/*/*{_STATE}")):
            folder = self._manifests / path.parent.relative_to(self._states)
            if not (folder / path.name.removesuffix(_STATE)).is_file():
                yield path

    def _path(self, name: ModelName) -> Path:
        return self._manifests.joinpath(*name.parts)


def _bundled_entry(name: ModelName) -> Entry:
    """Return a bundled model. Raises ModelNotFoundError."""
    path = bundled_model(name)
    if path is None:
        raise _not_found(name)
    found = read_bundled(path)
    digest = Digest(hashlib.sha256(found.manifest.encode()).hexdigest())
    return Entry(found.name, found.manifest, digest, path.stat().st_mtime, found)


def _not_found(name: ModelName) -> ModelNotFoundError:
    return ModelNotFoundError(f"model '{name.shown}' not found")


def _in_own_letters(folder: Path, part: str) -> str:
    if (folder / part).exists():
        return part
    # There may be no such folder, or none any more: processes remove empty ones.
    with suppress(FileNotFoundError, NotADirectoryError):
        return next((other for other in sorted(os.listdir(folder)) if other.lower() == part.lower()), part)
    return part


def _remove(path: Path) -> int | None:
    """Delete a file; return its size in bytes, or None if another program has just moved it."""
    with store_errors(f"{path.name} cannot be deleted"):
        try:
            size = path.lstat().st_size
            path.unlink()
        except FileNotFoundError:
            return None
    return size
