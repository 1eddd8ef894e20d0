"""Panels that processes share: one copy, the same bits, and no leftovers of a dead process."""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import chaski
from chaski import _native
from chaski.errors import ModelError
from chaski.ml.cpu import loading
from chaski.ml.cpu.shared_memory import SharedMemory
from tests.backends import about_the_processor

pytestmark = [
    pytest.mark.skipif(not _native.can_share_huge_pages(), reason="no huge pages to share here"),
    about_the_processor,
]

GUIDE = Path(chaski.__file__).parent / "models" / "guide.gguf"
IDS = list(range(40, 60))
SIZE = 4 << 20

# Loads a file, and stops while laying it out.
STOPS = """
import sys, time
import chaski
from chaski import _native
from chaski.ml.cpu import loading

lay_out = _native.lay_out
def stop(pool, isa, matrices, shared):
    import os
    lay_out(pool, isa, matrices, shared)
    os.pwrite(shared, bytes(range(256)) * 4096, 0)
    print("middle", flush=True)
    time.sleep(60)

_native.lay_out = stop
loading.GROUP_BYTES = 1 << 18
chaski.load(sys.argv[1], threads=1, context=64).wait_loaded()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a model that no other process has loaded."""
    return Path(shutil.copy(GUIDE, tmp_path / "model.gguf"))


@pytest.fixture(scope="module")
def expected() -> npt.NDArray[np.float32]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "can_share_huge_pages", lambda: False)
        return logits(GUIDE)


def logits(path: Path) -> npt.NDArray[np.float32]:
    with chaski.load(path, threads=1, context=64) as model:
        return model.logits(IDS)


def num_shared(model: chaski.LLM) -> int:
    """Return the bytes of weights that took no memory."""
    memory = model.memory()
    return memory.total - memory.to_take


def names_of(key: str) -> list[str]:
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if f"/{key}/" in line]


@pytest.mark.parametrize("groups", [1 << 30, 1 << 18], ids=["at once", "behind"])
def test_a_second_model_takes_no_memory(
    path: Path, expected: npt.NDArray[np.float32], groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "GROUP_BYTES", groups)
    with chaski.load(path, threads=1, context=64) as first:
        first.wait_loaded()
        with chaski.load(path, threads=1, context=32) as second:
            second.wait_loaded()
            assert num_shared(first) == 0
            assert num_shared(second) > 2 << 20
            assert np.array_equal(second.logits(IDS), expected)
        assert np.array_equal(first.logits(IDS), expected)
        with chaski.load(path, threads=1, context=64) as third:
            first.close()
            assert np.array_equal(third.logits(IDS), expected)


def test_another_file_of_the_same_content_is_another_model(path: Path, tmp_path: Path) -> None:
    other = shutil.copy(path, tmp_path / "other.gguf")
    with chaski.load(path, threads=1, context=64), chaski.load(other, threads=1, context=64) as model:
        assert num_shared(model) == 0


def test_complete_memory_stays_as_it_is(path: Path) -> None:
    memory = SharedMemory.of("stays", SIZE, path)
    assert memory is not None
    with memory.writing() as descriptor:
        os.pwrite(descriptor, b"panels", 0)
    memory.seal()
    again = SharedMemory.of("stays", SIZE, path)
    assert again is not None
    assert again.is_complete
    with pytest.raises(OSError, match="not permitted"), again.writing() as descriptor:
        os.ftruncate(descriptor, 0)
    with pytest.raises(OSError, match="not permitted"), again.writing() as descriptor:
        mmap.mmap(descriptor, SIZE)
    assert os.pread(again.descriptor, 6, 0) == b"panels"
    again.close()
    memory.close()
    assert not names_of("stays")


def test_a_process_that_dies_in_the_middle(
    path: Path, expected: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "GROUP_BYTES", 1 << 18)
    with subprocess.Popen(
        [sys.executable, "-c", STOPS, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "middle\n"
        with chaski.load(path, threads=1, context=64) as model:
            assert num_shared(model) > 2 << 20
            # It has the other's part, and computes from the file.
            assert np.array_equal(model.logits(IDS), expected)
            os.kill(process.pid, signal.SIGKILL)
            model.wait_loaded()
            assert np.array_equal(model.logits(IDS), expected)
            with chaski.load(path, threads=1, context=64) as third:
                assert num_shared(third) > 2 << 20
                assert np.array_equal(third.logits(IDS), expected)


@contextmanager
def named(key: str, descriptor: int, owner: int | None = None) -> Iterator[None]:
    """Record that a process, by default this one, has the memory of a key."""
    with socket.socket(socket.AF_UNIX) as name:
        name.bind(f"\0chaski-weights/{key}/{owner or os.getpid()}/{descriptor}".encode())
        yield
    os.close(descriptor)


def memfd(name: str, size: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize(
    ("name", "size", "seals"),
    [
        ("chaski-weights/odd", 2 << 20, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW),
        ("chaski-weights/odd", SIZE, 0),
        ("chaski-weights/even", SIZE, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW),
    ],
    ids=["of another size", "that may shrink", "of another key"],
)
def test_memory_that_is_not_ours_is_not_used(path: Path, name: str, size: int, seals: int) -> None:
    foreign = memfd(name, size, seals)
    with named("odd", foreign):
        memory = SharedMemory.of("odd", SIZE, path)
        assert memory is not None
        assert not os.path.samestat(os.fstat(memory.descriptor), os.fstat(foreign))
        memory.close()


def test_names_that_lead_nowhere(path: Path) -> None:
    with (
        named("lost", os.open("/dev/null", os.O_RDONLY)),
        named("lost", memfd("chaski-weights/lost", SIZE), owner=1 << 22),
        socket.socket(socket.AF_UNIX) as name,
    ):
        name.bind(b"\0chaski-weights/lost/../../etc/\xff")
        memory = SharedMemory.of("lost", SIZE, path)
        assert memory is not None
        assert not memory.is_complete
        memory.close()


def test_without_room_each_has_its_own(path: Path, expected: npt.NDArray[np.float32]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with chaski.load(path, threads=1, context=64), chaski.load(path, threads=1, context=64) as model:
            assert num_shared(model) == 0
            assert np.array_equal(model.logits(IDS), expected)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_changes_while_it_is_loaded_is_not_shared(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out = _native.lay_out

    def change(*arguments: object) -> None:
        lay_out(*arguments)
        os.utime(path, ns=(1, 1))

    monkeypatch.setattr(_native, "lay_out", change)
    with pytest.raises(ModelError, match=r"model\.gguf changed while the model was being loaded"):
        chaski.load(path, threads=1, context=64)
    monkeypatch.undo()
    assert logits(path) is not None
