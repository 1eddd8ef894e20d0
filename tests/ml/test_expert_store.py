"""Experts that are read from the file when tokens choose them: the bits of a model wholly in memory."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import chaski
from chaski import _native
from chaski.errors import ModelError, OptionError
from chaski.formats.gguf import open_gguf
from chaski.ml.cpu import backend as cpu_backend
from chaski.ml.cpu.backend import CPUBackend
from chaski.ml.cpu.experts import ExpertMemory
from chaski.ml.cpu.weight_files import laid_out_type
from tests.backends import about_the_processor
from tests.first_gptoss import FORMS, write_both

pytestmark = about_the_processor

DATA = Path(__file__).parent.parent / "data"
NAMES = [
    "qwen3moe",
    "qwen2moe",
    "mixtral",
    "llama4",
    "gemma4-moe",
    "gpt-oss-mxfp4",
    "granitemoe",
    "qwen35moe",
]
PATHS = [DATA / "architectures" / f"{name}.gguf" for name in NAMES]
PATH = PATHS[0]
IDS = [int(i) for i in np.random.default_rng(7).integers(5, 60, 40)]
TEXTS = (IDS, IDS[:1], IDS[1:9], IDS)

F32 = npt.NDArray[np.float32]


def least_memory(path: Path) -> int:
    """Return the bytes of two experts of each stack."""
    with open_gguf(path) as file:
        stacks = [info for name, info in file.tensors.items() if "_exps." in name and len(info.shape) == 3]
    sizes = (_native.matrix_bytes(int(laid_out_type(info.type)), *info.shape[1:]) for info in stacks)
    return sum(2 * (-(-size // 64) * 64) for size in sizes)


def reports_cached_pages() -> bool:
    """Return whether this is Linux 6.5 or later."""
    version = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    return sys.platform == "linux" and version >= (6, 5)


def logits(path: Path, memory: int | None = None, threads: int = 1) -> list[F32]:
    with chaski.load(path, context=64, threads=threads, expert_memory=memory) as model:
        assert bool(experts_of(model)) is (memory is not None)
        return [model.logits(ids) for ids in TEXTS]


def experts_of(model: chaski.LLM) -> ExpertMemory | None:
    backend = model._backend
    assert isinstance(backend, CPUBackend)
    return backend._experts


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_same_bits(path: Path, threads: int) -> None:
    least = least_memory(path)
    for memory in (least, least + least // 3):
        found = logits(path, memory, threads)
        assert all(map(np.array_equal, found, logits(path)))


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_of_joined_and_interleaved_experts(tmp_path: Path, form: str) -> None:
    _, theirs = write_both(tmp_path, form)
    with pytest.raises(OptionError) as raised:
        logits(theirs, 1)
    least = int(str(raised.value).partition("take ")[2].partition(" bytes")[0])
    assert all(map(np.array_equal, logits(theirs, least), logits(theirs)))


def test_enough_memory_changes_nothing() -> None:
    with chaski.load(PATH, context=64, threads=1, expert_memory=1 << 30) as model:
        assert experts_of(model) is None


def test_too_little_memory_is_an_error() -> None:
    least = least_memory(PATH)
    with pytest.raises(OptionError, match=rf"two experts of each layer take {least} bytes"):
        chaski.load(PATH, context=64, threads=1, expert_memory=least - 1)
    with pytest.raises(OptionError, match="expert_memory = -1 must be a whole number"):
        chaski.load(PATH, context=64, threads=1, expert_memory=-1)


def test_a_small_machine_reads_experts_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits(PATH)
    size = PATH.stat().st_size
    monkeypatch.setattr(cpu_backend, "total_memory", lambda: size)
    with chaski.load(PATH, context=64, threads=1) as model:
        assert experts_of(model) is not None
        assert "of memory free: experts are read from the disk, with" in caplog.text
        assert all(map(np.array_equal, [model.logits(ids) for ids in TEXTS], expected))


def test_counts() -> None:
    with chaski.load(PATH, context=64, threads=1, expert_memory=least_memory(PATH)) as model:
        model.logits(IDS)
        experts = experts_of(model)
        assert experts is not None
        layers = experts.layers()
        assert [layer.layer for layer in layers] == list(range(len(layers)))
        for layer in layers:
            assert 0 < layer.hits < layer.requests
            assert layer.slots == 6 < layer.matrices
            assert layer.bytes_read > 0


def test_a_batch_reads_each_missing_matrix_once() -> None:
    with chaski.load(PATH, context=64, threads=1, expert_memory=2 * least_memory(PATH)) as model:
        experts = experts_of(model)
        assert experts is not None
        for _ in range(5):
            requests, hits, num_bytes = totals(experts)
            model.logits(IDS)
            more_requests, more_hits, more_bytes = totals(experts)
            missing = (more_requests - requests) - (more_hits - hits)
            # A matrix of the fixture has 32 rows of 32 floats. Some may have been coming at the request.
            assert 0 < more_bytes - num_bytes <= 4096 * missing


def totals(experts: ExpertMemory) -> tuple[int, int, int]:
    """Return the requests and hits of all layers, and the bytes read, when every slot is full."""
    while experts._store.filled_bytes < 4096 * sum(layer.slots for layer in experts.layers()):
        time.sleep(0.001)
    layers = experts.layers()
    return (
        sum(layer.requests for layer in layers),
        sum(layer.hits for layer in layers),
        sum(layer.bytes_read for layer in layers),
    )


def test_a_file_that_shrinks_fails_only_requests_that_need_the_rest(tmp_path: Path) -> None:
    expected = logits(PATH)
    path = Path(shutil.copy(PATH, tmp_path / "shrinking.gguf"))
    content = path.read_bytes()
    with chaski.load(path, context=64, threads=1, expert_memory=least_memory(PATH)) as model:
        assert np.array_equal(model.logits(IDS), expected[0])
        os.truncate(path, 4096)
        with pytest.raises(ModelError, match=r"shrinking\.gguf cannot be read: .* has become shorter"):
            model.logits(IDS)
        path.write_bytes(content)
        assert all(map(np.array_equal, [model.logits(ids) for ids in TEXTS], expected))


def test_a_file_that_vanishes_changes_nothing(tmp_path: Path) -> None:
    path = Path(shutil.copy(PATH, tmp_path / "vanishing.gguf"))
    with chaski.load(path, context=64, threads=1, expert_memory=least_memory(PATH)) as model:
        path.unlink()
        assert np.array_equal(model.logits(IDS), logits(PATH)[0])


@pytest.mark.skipif(not reports_cached_pages(), reason="the system does not report what is cached")
def test_what_the_page_cache_holds_is_not_read_from_the_disk(tmp_path: Path) -> None:
    path = Path(shutil.copy(PATH, tmp_path / "cached.gguf"))
    os.sync()
    path.read_bytes()
    with chaski.load(path, context=64, threads=1, expert_memory=least_memory(PATH)) as model:
        before = bytes_from_disks()
        assert np.array_equal(model.logits(IDS), logits(PATH)[0])
        experts = experts_of(model)
        assert experts is not None
        assert sum(layer.bytes_read for layer in experts.layers()) > 0
        assert bytes_from_disks() == before


def bytes_from_disks() -> int:
    """Return the bytes that this process has read from disks so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


@pytest.mark.long
def test_memory_changes_while_batches_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits(PATH)[0]
    least = least_memory(PATH)
    monkeypatch.setattr("chaski.ml.cpu.experts._STEP", 0.0)
    monkeypatch.setattr("chaski.ml.cpu.experts.spare_memory", lambda: 0)
    with chaski.load(PATH, context=64, threads=2, expert_memory=2 * least) as model:
        experts = experts_of(model)
        assert experts is not None
        is_over = threading.Event()

        def change() -> None:
            random = np.random.default_rng(3)
            while not is_over.is_set():
                experts.adapt(int(random.integers(-2 * least, 2 * least)))

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(200):
                assert np.array_equal(model.logits(IDS), expected)
        finally:
            is_over.set()
            thread.join()
        experts.adapt(-(10 * least))
        assert experts._store.filled_bytes <= least
        assert np.array_equal(model.logits(IDS), expected)
