"""`FileStore`: store uploaded files and files of results on disk, with a folder for each owner."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from uuid import uuid4

from msgspec import Struct, convert

from chaski.errors import FileNotKnownError, OptionError
from chaski.server.network.budget import TooLargeError
from chaski.store.durable import publish

__all__ = ["Ages", "FileStore", "Kept", "open_private", "read_object", "write_object"]

T = TypeVar("T")

_ID = re.compile(r"(file|batch)[-_][0-9a-z_]{8,64}")
_SECRET = ".secret"
_ABOUT, _CONTENT = "about.json", "content"
_THREADS = 2
# Largest size of a description in bytes. OpenAI's limits allow a few thousand.
_MAX_OBJECT = 1 << 20
# Seconds after which an incomplete file must have been left by a server that has ended.
_LEFT_SECONDS = 3600
# Bytes of a file on the disk are a multiple of this, so that tiny files do not occupy more than is allowed.
_BLOCK = 4096
# Bytes that must stay free on the disk.
_SPARE = 1 << 30


def _former_name(client: str) -> str:
    """Return the name of a client's folder in earlier versions, which was a hash without a secret."""
    return sha256(f"files of {client}".encode()).hexdigest()[:32]


class FileStore:
    """Files in `folder`, which may occupy `max_bytes` together. Thread-safe.

    Each file is a folder that contains the content and the description in the form of OpenAI's API. It lies
    in its owner's folder, whose name `owner_of` returns.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        # Reading and writing large files must not occupy threads that other requests wait for.
        self._threads = ThreadPoolExecutor(_THREADS, "chaski-files")
        self._ages = Ages()

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that reads or writes files, in a thread of this store."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def owner_of(self, client: str) -> str:
        """Return the name of a client's folder, which does not reveal the key without the store's secret.

        Raises OSError if the secret cannot be stored.
        """
        return hmac.digest(self._secret, client.encode(), "sha256").hex()[:32]

    def rename_former(self, clients: Iterable[str]) -> None:
        """Rename clients' folders that earlier versions created."""
        for client in clients:
            former = self._folder(_former_name(client))
            if former.is_dir() and not self._folder(self.owner_of(client)).exists():
                former.rename(self._folder(self.owner_of(client)))

    @cached_property
    def _secret(self) -> bytes:
        path = self.folder / _SECRET
        if not path.is_file():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = path.with_name(f"{uuid4().hex}.tmp")
            with open_private(temporary) as file:
                file.write(secrets.token_bytes(32))
            with suppress(FileExistsError):  # another server was faster
                os.link(temporary, path)
            temporary.unlink()
        return path.read_bytes()

    @contextmanager
    def receiving(self, owner: str) -> Iterator[Path]:
        """Yield a path for the content of a new file. The content is deleted unless it was added."""
        folder = self._owned(owner)
        path = folder / f"{uuid4().hex}.tmp"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def require_room(self, num_bytes: int) -> None:
        """Raise TooLargeError if `num_bytes` more bytes do not fit, OptionError if files are not accepted."""
        if self.max_bytes == 0:
            raise OptionError(
                "this server accepts no files; set CHASKI_FILES to the disk space that they may occupy"
            )
        used = 0
        left = time.time() - _LEFT_SECONDS
        for folder, _, names in os.walk(self.folder):  # which passes over folders that have disappeared
            for path in (Path(folder, name) for name in names if name != _SECRET):
                with suppress(FileNotFoundError):
                    found = path.stat()
                    if path.suffix == ".tmp" and found.st_mtime < left:
                        path.unlink()
                    else:
                        used += -(-found.st_size // _BLOCK) * _BLOCK
        if used + num_bytes > self.max_bytes:
            raise TooLargeError(
                f"files occupy {used} of {self.max_bytes} bytes, which leaves too little room; delete some, "
                "or set CHASKI_FILES to a larger size"
            )
        if self.folder.exists() and shutil.disk_usage(self.folder).free < num_bytes + _SPARE:
            raise TooLargeError("the server's disk has too little free space for the file")

    def add(
        self, owner: str, content: Path, name: str, purpose: str, file_id: str | None = None
    ) -> Mapping[str, Any]:
        """Add a file by moving its content, and return its description. A file of the same id is replaced."""
        file_id = file_id or f"file-{uuid4().hex[:24]}"
        folder = self._owned(owner) / file_id
        folder.mkdir(mode=0o700, exist_ok=True)
        publish(content, folder / _CONTENT)
        about = {
            "id": file_id,
            "object": "file",
            "bytes": (folder / _CONTENT).stat().st_size,
            "created_at": int(time.time()),
            "filename": name,
            "purpose": purpose,
            "status": "processed",
        }
        write_object(folder / _ABOUT, about)
        return about

    def get(self, owner: str, file_id: str) -> Mapping[str, Any]:
        """Return the description of a file. Raises FileNotKnownError."""
        found = self.find(owner, file_id)
        if found is None:
            raise FileNotKnownError(f"No such File object: {file_id:.80}")
        return found

    def find(self, owner: str, file_id: str) -> Mapping[str, Any] | None:
        """Return the description of a file; None if the file does not exist."""
        return read_object(self._place(owner, file_id) / _ABOUT, About)

    def content(self, owner: str, file_id: str) -> Path:
        """Return the path of a file's content. Raises FileNotKnownError."""
        self.get(owner, file_id)
        return self._place(owner, file_id) / _CONTENT

    def ids(self, owner: str) -> list[str]:
        """Return the ids of all files of an owner, the oldest first."""
        return self._ages.ordered(self._folder(owner).glob(f"file-*/{_ABOUT}"), About)

    def remove(self, owner: str, file_id: str) -> None:
        """Delete a file. Raises FileNotKnownError."""
        self.get(owner, file_id)
        shutil.rmtree(self._place(owner, file_id), ignore_errors=True)
        self._ages.forget(self._place(owner, file_id) / _ABOUT)

    def _place(self, owner: str, file_id: str) -> Path:
        """Return the folder of a file, which need not exist. Raises FileNotKnownError for an invalid id."""
        if not _ID.fullmatch(file_id):
            raise FileNotKnownError(f"No such File object: {file_id:.80}")
        return self._folder(owner) / file_id

    def _folder(self, owner: str) -> Path:
        return self.folder / owner

    def _owned(self, owner: str) -> Path:
        folder = self._folder(owner)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


def open_private(path: Path) -> BinaryIO:
    """Create a file that only its owner may read, and open it for writing bytes. Raises OSError."""
    return open(path, "xb", opener=partial(os.open, mode=0o600))


def write_object(path: Path, fields: Mapping[str, Any]) -> None:
    """Write JSON durably and atomically. Raises OSError."""
    temporary = path.with_name(f"{uuid4().hex}.tmp")
    try:
        with open_private(temporary) as file:
            file.write(json.dumps(fields).encode())
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_object(path: Path, form: type[Kept]) -> dict[str, Any] | None:
    """Return JSON that `write_object` wrote; None if it is missing or does not match `form`."""
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size > _MAX_OBJECT:
            return None
        found = json.loads(path.read_bytes())
        convert(found, form)
        return dict(found)
    return None


class Kept(Struct):
    """Required fields of every stored object."""

    id: str
    created_at: int
    status: str


class About(Kept):
    """Required fields of the description of a file."""

    bytes: int
    filename: str
    purpose: str


class Ages:
    """Creation times of stored objects. They never change, so each object is read only once. Thread-safe."""

    def __init__(self) -> None:
        self._created: dict[str, tuple[int, str]] = {}  # by path; a Path takes a kilobyte

    def ordered(self, paths: Iterable[Path], form: type[Kept]) -> list[str]:
        """Return the ids of all readable objects, the oldest first."""
        found = [age for age in (self._age(path, form) for path in paths) if age is not None]
        return [name for _, name in sorted(found)]

    def forget(self, path: Path) -> None:
        """Drop the time of a deleted object."""
        self._created.pop(os.fspath(path), None)

    def _age(self, path: Path, form: type[Kept]) -> tuple[int, str] | None:
        found = self._created.get(os.fspath(path))
        if found is None:
            state = read_object(path, form)
            if state is None or state["id"] != path.parent.name:
                return None
            found = self._created[os.fspath(path)] = state["created_at"], state["id"]
        return found
