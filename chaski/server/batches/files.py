"""`FileStore`: files that clients upload for batches, and those of results, on disk, for each owner apart."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from chaski.errors import FileNotKnownError, OptionError
from chaski.server.network.budget import TooLargeError
from chaski.store.durable import publish

__all__ = ["FileStore", "open_private", "owner_name", "read_object", "write_object"]

_ID = re.compile(r"(file|batch)[-_][0-9a-z_]{8,64}")
_ABOUT, _CONTENT = "about.json", "content"
# Bytes that files leave free on the disk.
_SPARE = 1 << 30


def owner_name(client: str) -> str:
    """Return the name of the folder of a client, which tells nobody its key."""
    return sha256(f"files of {client}".encode()).hexdigest()[:32]


class FileStore:
    """Files in `folder`, which take up to `max_bytes` together. Safe to use from several threads.

    A file is a folder with its content, and with what OpenAI's API says about it. It lies in the folder of
    its owner, who is called as `owner_name` says.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes

    @contextmanager
    def receiving(self, owner: str) -> Iterator[Path]:
        """The path for the content of a new file, which is gone afterwards unless it was added."""
        folder = self._owned(owner)
        path = folder / f"{uuid4().hex}.tmp"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def require_room(self, num_bytes: int) -> None:
        """Raise TooLargeError where so many more bytes find no room."""
        if self.max_bytes == 0:
            raise OptionError(
                "this server takes no files; CHASKI_FILES says how much disk space they may take"
            )
        used = 0
        for path in self.folder.glob("*/*/*"):
            with suppress(FileNotFoundError):
                used += path.stat().st_size
        if used + num_bytes > self.max_bytes:
            raise TooLargeError(
                f"files take {used} of {self.max_bytes} bytes, so there is no room for more; delete some, or "
                "set CHASKI_FILES to more"
            )
        if self.folder.exists() and shutil.disk_usage(self.folder).free < num_bytes + _SPARE:
            raise TooLargeError("the disk has no room for the file")

    def add(
        self, owner: str, content: Path, name: str, purpose: str, file_id: str | None = None
    ) -> Mapping[str, Any]:
        """Make a file of a content, which is moved -> what is said about it. One of this id is replaced."""
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
        """Return what is said about a file. Raises FileNotKnownError."""
        found = read_object(self._place(owner, file_id) / _ABOUT)
        if found is None:
            raise FileNotKnownError(f"No such File object: {file_id:.80}")
        return found

    def content(self, owner: str, file_id: str) -> Path:
        """Return the path of a file's content. Raises FileNotKnownError."""
        self.get(owner, file_id)
        return self._place(owner, file_id) / _CONTENT

    def all(self, owner: str) -> Sequence[Mapping[str, Any]]:
        """Return all files of an owner, the oldest first."""
        found = [read_object(path) for path in self._folder(owner).glob(f"file-*/{_ABOUT}")]
        return sorted((each for each in found if each), key=lambda each: (each["created_at"], each["id"]))

    def remove(self, owner: str, file_id: str) -> None:
        """Delete a file. Raises FileNotKnownError."""
        self.get(owner, file_id)
        shutil.rmtree(self._place(owner, file_id), ignore_errors=True)

    def _place(self, owner: str, file_id: str) -> Path:
        """Return the folder of a file, whether it is there or not. Raises FileNotKnownError for no id."""
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
    """Make a file that only its owner may read, and open it for bytes. Raises OSError."""
    return open(path, "xb", opener=partial(os.open, mode=0o600))


def write_object(path: Path, fields: Mapping[str, Any]) -> None:
    """Write JSON, durably and all at once. Raises OSError."""
    temporary = path.with_name(f"{uuid4().hex}.tmp")
    try:
        with open_private(temporary) as file:
            file.write(json.dumps(fields).encode())
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_object(path: Path) -> dict[str, Any] | None:
    """Read JSON that `write_object` wrote; None where it is not there."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_bytes())
        if isinstance(found, dict):
            return found
    return None
