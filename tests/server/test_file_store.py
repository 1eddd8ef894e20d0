"""`FileStore`: files on disk with an owner each, and what other owners and a damaged disk cannot do."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaski.errors import FileNotKnownError, OptionError
from chaski.server.batches import files
from chaski.server.batches.files import About, FileStore, Kept, read_object, write_object
from chaski.server.network.budget import TooLargeError

DAY = 24 * 3600


def put(store: FileStore, owner: str, content: bytes = b"x", **more: str) -> str:
    with store.receiving(owner) as path:
        with files.open_private(path) as file:
            file.write(content)
        return str(store.add(owner, path, "a.jsonl", "batch", **more)["id"])


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.rglob("*")}


# ---- owners ----


def test_a_folder_does_not_reveal_its_key(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "files", 1000)
    owner = store.owner_of("a key")
    secret = tmp_path / "files" / ".secret"
    assert owner == hmac.new(secret.read_bytes(), b"a key", "sha256").hexdigest()[:32]
    assert store.owner_of("another key") != owner == store.owner_of("a key")
    assert FileStore(tmp_path / "files", 1000).owner_of("a key") == owner
    assert FileStore(tmp_path / "others", 1000).owner_of("a key") != owner
    assert len(secret.read_bytes()) == 32
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(secret.parent) == [".secret"]


def test_two_servers_agree_on_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(count: int) -> bytes:
        (tmp_path / ".secret").write_bytes(b"the other's")
        return bytes(count)

    monkeypatch.setattr("secrets.token_bytes", meanwhile)
    owner = FileStore(tmp_path, 1000).owner_of("key")
    assert owner == hmac.new(b"the other's", b"key", "sha256").hexdigest()[:32]
    assert os.listdir(tmp_path) == [".secret"]


def test_folders_of_earlier_versions_are_renamed_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 1000)
    former = {name: tmp_path / sha256(f"files of {name}".encode()).hexdigest()[:32] for name in "abc"}
    for name in "ab":
        former[name].mkdir()
        (former[name] / name).write_text("")
    (tmp_path / store.owner_of("b")).mkdir()
    store.rename_former("abc")
    assert (tmp_path / store.owner_of("a") / "a").exists()
    assert not former["a"].exists()
    assert former["b"].exists()  # its owner has a new one already
    assert not (tmp_path / store.owner_of("c")).exists()


def test_an_id_without_its_owner_finds_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 100_000)
    mine, yours = put(store, "me", b"mine"), put(store, "you", b"yours")
    same = [put(store, owner, owner.encode(), file_id="file-of_both_0") for owner in ("me", "you")]
    assert same == ["file-of_both_0"] * 2
    for owner, file_id in (("me", yours), ("you", mine), ("they", mine), ("me", "file-000000000000")):
        for call in (store.get, store.content, store.remove):
            with pytest.raises(FileNotKnownError, match=f"^No such File object: {file_id}$"):
                call(owner, file_id)
        assert store.find(owner, file_id) is None
    assert store.content("me", mine).read_bytes() == b"mine"
    assert store.content("you", yours).read_bytes() == b"yours"
    store.remove("me", "file-of_both_0")
    assert store.content("you", "file-of_both_0").read_bytes() == b"you"
    assert (store.ids("me"), set(store.ids("you"))) == ([mine], {yours, "file-of_both_0"})
    assert store.ids("they") == []


@pytest.mark.parametrize(
    "file_id",
    [
        "",
        ".",
        "..",
        "../you/file-00000000",
        "file-../../you",
        "file-0000000",
        f"file-{'0' * 65}",
        "file-00000000/",
        "file-00000000\n",
        " file-00000000",
        "FILE-00000000",
        "file-0000000A",
        "pile-00000000",
        "/etc/passwd",
    ],
)
def test_no_id_leads_elsewhere(tmp_path: Path, file_id: str) -> None:
    store = FileStore(tmp_path, 100_000)
    put(store, "you", file_id="file-00000000")
    for call in (store.get, store.content, store.remove, store.find):
        with pytest.raises(FileNotKnownError) as error:
            call("me", file_id)
        assert str(error.value) == f"No such File object: {file_id:.80}"
    assert store.ids("you") == ["file-00000000"]


# ---- files ----


def test_what_is_told_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.9)
    store = FileStore(tmp_path / "files", 100_000)
    owner = store.owner_of("a key")
    file_id = put(store, owner, b"four")
    assert store.get(owner, file_id) == {
        "id": file_id,
        "object": "file",
        "bytes": 4,
        "created_at": 1_700_000_000,
        "filename": "a.jsonl",
        "purpose": "batch",
        "status": "processed",
    }
    assert len(file_id) == len("file-") + 24
    assert os.listdir(tmp_path / "files" / owner) == [file_id]
    assert modes(tmp_path) == {0o700, 0o600}
    store.remove(owner, file_id)
    assert os.listdir(tmp_path / "files" / owner) == []


def test_what_is_received_is_private_and_leaves_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "deep" / "files", 100_000)
    with pytest.raises(OSError, match="torn"), store.receiving("me") as path:  # noqa: PT012
        with files.open_private(path) as file:
            file.write(b"half")
        assert modes(tmp_path / "deep" / "files") == {0o700, 0o600}
        raise OSError("torn")
    assert os.listdir(tmp_path / "deep" / "files" / "me") == []
    with store.receiving("me"):
        pass
    with store.receiving("me") as path, files.open_private(path), pytest.raises(FileExistsError):
        files.open_private(path)


def test_a_file_of_the_same_id_is_replaced(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 100_000)
    for content in (b"one", b"three"):
        put(store, "me", content, file_id="file-00000000")
    assert store.content("me", "file-00000000").read_bytes() == b"three"
    assert store.get("me", "file-00000000")["bytes"] == 5
    assert store.ids("me") == ["file-00000000"]


def test_the_oldest_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path, 100_000)
    for seconds, name in ((5, "b"), (3, "d"), (5, "a"), (4, "c")):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: float(seconds))
        put(store, "me", file_id=f"file-{name * 8}")
    order = [f"file-{name * 8}" for name in "dcab"]
    assert store.ids("me") == order
    assert FileStore(tmp_path, 100_000).ids("me") == order
    store.remove("me", order[1])
    assert store.ids("me") == [order[0], *order[2:]]
    monkeypatch.setattr(time, "time", lambda: 9.0)
    put(store, "me", file_id=order[1])
    assert store.ids("me") == [order[0], *order[2:], order[1]]


def test_files_are_read_and_written_in_threads_of_their_own(tmp_path: Path) -> None:
    """Threads that other requests wait for are not used."""
    store = FileStore(tmp_path, 1000)
    both = threading.Barrier(2, timeout=20)

    def where(*given: object) -> tuple[str, tuple[object, ...]]:
        both.wait()
        return threading.current_thread().name, given

    async def run() -> list[tuple[str, tuple[object, ...]]]:
        return list(await asyncio.gather(store.run(where, 1, "a"), store.run(where, 2, "b")))

    (first, one), (second, two) = asyncio.run(run())
    assert {first, second} == {"chaski-files_0", "chaski-files_1"}
    assert (one, two) == ((1, "a"), (2, "b"))
    store.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        asyncio.run(run())


def test_closing_waits_for_nobody(tmp_path: Path) -> None:
    store, may_end, begun = FileStore(tmp_path, 1000), threading.Event(), threading.Semaphore(0)
    called: list[int] = []

    def work() -> bool:
        begun.release()
        return may_end.wait(20)

    async def run() -> None:
        running = [asyncio.ensure_future(store.run(work)) for _ in range(2)]
        for _ in running:
            await asyncio.to_thread(begun.acquire)
        waiting = asyncio.ensure_future(store.run(called.append, 1))
        await asyncio.sleep(0)
        store.close()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.gather(*running) == [True, True]

    asyncio.run(run())
    assert called == []


def test_a_folder_that_is_gone_meanwhile_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path, 100_000)
    file_id = put(store, "me")
    remove = shutil.rmtree

    def removed(path: Path, **options: bool) -> None:
        remove(path)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", removed)
    store.remove("me", file_id)
    assert store.ids("me") == []


# ---- objects on disk ----

GOOD = {"id": "file-00000000", "created_at": 1, "status": "processed", "more": [1]}
ABOUT = GOOD | {"bytes": 1, "filename": "a", "purpose": "batch"}


@pytest.mark.parametrize(
    ("content", "form", "is_read"),
    [
        (json.dumps(GOOD).encode(), Kept, True),
        (json.dumps(ABOUT).encode(), About, True),
        (json.dumps(GOOD).encode(), About, False),
        (json.dumps(GOOD | {"id": 3}).encode(), Kept, False),
        (json.dumps(GOOD).encode().ljust(1 << 20), Kept, True),
        (json.dumps(GOOD).encode().ljust((1 << 20) + 1), Kept, False),
        (b"[" * 100_000, Kept, False),
        (b"[]", Kept, False),
        (b"\xff", Kept, False),
        (b"", Kept, False),
    ],
    ids=range(10),
)
def test_what_is_no_object_is_not_read(
    tmp_path: Path, content: bytes, form: type[Kept], is_read: bool
) -> None:
    (tmp_path / "a").write_bytes(content)
    assert (read_object(tmp_path / "a", form) is not None) is is_read
    assert read_object(tmp_path / "missing", form) is None


def test_an_object_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_object(path, GOOD)
    assert read_object(path, Kept) == GOOD
    assert path.stat().st_mode & 0o777 == 0o600

    def fail(*paths: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(files, "publish", fail)
    with pytest.raises(OSError, match="no space"):
        write_object(path, GOOD | {"status": "other"})
    assert os.listdir(tmp_path) == ["a.json"]
    assert read_object(path, Kept) == GOOD


def test_an_object_in_a_foreign_folder_is_not_listed(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 100_000)
    put(store, "me", file_id="file-00000000")
    shutil.copytree(tmp_path / "me" / "file-00000000", tmp_path / "me" / "file-11111111")
    assert store.ids("me") == ["file-00000000"]


# ---- room ----


def test_files_occupy_whole_blocks(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 4 * 4096)
    store.owner_of("the secret takes no room")
    put(store, "me", bytes(4097))  # two blocks, and one of its description
    store.require_room(4096)
    with pytest.raises(TooLargeError) as error:
        store.require_room(4097)
    assert str(error.value) == (
        "files occupy 12288 of 16384 bytes, which leaves too little room; delete some, "
        "or set CHASKI_FILES to a larger size"
    )


@pytest.mark.parametrize(("age", "is_left"), [(3590, True), (3610, False)])
def test_half_a_file_counts_for_an_hour(tmp_path: Path, age: int, is_left: bool) -> None:
    store = FileStore(tmp_path, 4096)
    with store.receiving("me") as path:
        path.write_bytes(b"x")
        old = time.time() - age
        os.utime(path, (old, old))
        if is_left:
            with pytest.raises(TooLargeError):
                store.require_room(1)
        else:
            store.require_room(1)
        assert path.exists() is is_left


def test_only_half_files_are_removed_by_their_age(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 100_000)
    file_id = put(store, "me")
    os.utime(store.content("me", file_id), (0, 0))
    store.require_room(1)
    assert store.content("me", file_id).exists()


def test_a_server_that_accepts_no_files(tmp_path: Path) -> None:
    message = "this server accepts no files; set CHASKI_FILES to the disk space that they may occupy"
    with pytest.raises(OptionError, match=f"^{message}$"):
        FileStore(tmp_path, 0).require_room(0)
    FileStore(tmp_path, 1).require_room(1)


def test_some_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def usage(free: int) -> Callable[[Path], SimpleNamespace]:
        return lambda path: asked.append(path) or SimpleNamespace(free=free)  # type: ignore[func-returns-value]

    store = FileStore(tmp_path / "files", 1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", usage(0))
    store.require_room(1)  # its folder is made by the first file
    put(store, "me")
    monkeypatch.setattr(shutil, "disk_usage", usage((1 << 30) + 5))
    store.require_room(5)
    with pytest.raises(TooLargeError, match=r"^the server's disk has too little free space for the file$"):
        store.require_room(6)
    assert set(asked) == {tmp_path / "files"}
