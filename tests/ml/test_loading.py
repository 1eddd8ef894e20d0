"""Matrices that are used before they are laid out: the same bits, and errors that name the file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import chaski
from chaski import _native
from chaski.errors import ModelError, OutOfMemoryError
from chaski.formats.gguf import TensorInfo, open_gguf
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType, row_bytes
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.cpu import backend, loading
from chaski.ml.cpu.partly_loaded import PartlyLoaded
from chaski.ml.cpu.weight_files import WeightFiles
from chaski.ml.graph import Dim, DType, Graph, Weight
from tests.backends import about_the_processor
from tests.first_gptoss import FORMS, write_both

pytestmark = about_the_processor

DATA = Path(__file__).parent.parent / "data"
FILES = ["f16", "bf16", "q4_k", "q6_k", "q8_0", "mxfp4"]
PATHS = [DATA / "llama" / "quantized" / f"{name}.gguf" for name in FILES]
PATHS += [DATA / "architectures" / "qwen3moe.gguf", DATA / "llama" / "llama31.f32.gguf"]
IDS = [int(i) for i in np.random.default_rng(7).integers(0, 64, 40)]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Load even tiny models in a thread, which waits for the first run without a limit."""
    monkeypatch.setattr(loading, "GROUP_BYTES", 1 << 10)
    monkeypatch.setattr(loading, "PATIENCE", 600.0)
    yield
    assert not is_loading()


def is_loading() -> bool:
    return any(thread.name == "chaski-loading" for thread in threading.enumerate())


def logits(path: Path, ids: list[int], waits: bool, threads: int = 1) -> npt.NDArray[np.float32]:
    path.read_bytes()  # now the file is in the page cache
    with chaski.load(path, threads=threads, context=64) as model:
        if waits:
            model.wait_loaded()
        assert is_loading() is not waits
        return model.logits(ids)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_same_bits_from_the_file(path: Path, threads: int) -> None:
    for ids in (IDS, IDS[:1]):
        from_file = logits(path, ids, False, threads)
        assert np.array_equal(from_file, logits(path, ids, True, threads))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_from_rows_in_turn(tmp_path: Path, form: str, threads: int) -> None:
    ours, theirs = write_both(tmp_path, form)
    for ids in (IDS, IDS[:1]):
        from_file = logits(theirs, ids, False, threads)
        assert np.array_equal(from_file, logits(theirs, ids, True, threads))
        assert np.array_equal(from_file, logits(ours, ids, True, threads))


TYPES = [*map(QuantType, _native.matrix_types()), QuantType.MXFP4_INTERLEAVED]


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_rows_in_turn_are_matrices_of_their_own(
    tmp_path: Path, type: QuantType, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tests two matrices of 37 rows, laid out, read by steps from the file, and streamed."""
    columns = 96 if 96 % type.block_size == 0 else type.block_size
    rows = np.random.default_rng(3).integers(0, 64, (74, row_bytes(type, columns)), np.uint8)
    path = tmp_path / "a.gguf"
    tensors = {"in turn": rows, "first": rows[::2], "second": rows[1::2]}
    write_gguf(
        path, {"general.architecture": "test"}, {n: stored(a, type, columns) for n, a in tensors.items()}
    )
    path.read_bytes()
    with open_gguf(path) as file:
        whole = file.tensors["in turn"]
        parts = [whole.part(name, 0, slice(i, None, 2)) for i, name in enumerate(("a", "b"))]
        wanted = computed([file.tensors["first"], file.tensors["second"]], isa, True)
        assert np.isfinite(wanted).all()
        for waits in (False, True):
            np.testing.assert_array_equal(computed(parts, isa, waits), wanted)
        monkeypatch.setattr(backend, "total_memory", lambda: 0)
        monkeypatch.setattr(PartlyLoaded, "fill", lambda self, room: ())
        np.testing.assert_array_equal(computed(parts, isa, False, runs=3), wanted)


def stored(rows: npt.NDArray[np.uint8], type: QuantType, columns: int) -> LazyTensor:
    return LazyTensor((len(rows), columns), type, lambda: [np.ascontiguousarray(rows)])


def computed(matrices: list[TensorInfo], isa: str, waits: bool, runs: int = 1) -> npt.NDArray[np.float32]:
    """Return the products of the rows of one matrix and another, of the last run."""
    opened = open_backend("cpu", CPUOptions(threads=2, isa=isa))
    graph, weights = Graph(), [Weight(info.shape, name=info.name) for info in matrices]
    opened.place(list(zip(weights, matrices, strict=True)))
    rows = matrices[0].shape[0]
    x = ops.embedding(graph.input("ids", (Dim("tokens", rows),), DType.I32), weights[0])
    graph.output("y", ops.linear(x, weights[1]))
    plan = opened.compile(graph)
    opened.load(lambda _: None)
    if waits:
        opened.wait_loaded()
    for _ in range(runs):
        found = plan.launch({"ids": np.arange(rows, dtype=np.int32)}).rows("y").copy()
    opened.close()
    return found


def test_the_same_bits_while_they_are_laid_out() -> None:
    with chaski.load(PATHS[0], threads=2, context=64) as model:
        results = [model.logits(IDS) for _ in range(8)]
    assert all(np.array_equal(results[0], later) for later in results)


def test_a_small_file_on_the_disk_is_computed_with_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WeightFiles, "are_in_memory", lambda files, share: False)
    with chaski.load(PATHS[0], context=64) as model:
        assert is_loading()
        first = model.logits(IDS)
        model.wait_loaded()
        assert np.array_equal(first, model.logits(IDS))


def test_a_small_file_is_read_at_once_where_there_is_no_room_for_both_forms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WeightFiles, "are_in_memory", lambda files, share: False)
    monkeypatch.setattr(loading, "available_memory", lambda: 0)
    with chaski.load(PATHS[0], context=64):
        assert not is_loading()


def test_a_file_that_is_not_in_memory_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "WARM", 1.1)
    monkeypatch.setattr(loading, "SOON_BYTES", 0)
    shares: list[float] = []
    with chaski.load(PATHS[0], context=64, progress=shares.append) as model:
        assert not is_loading()
        assert shares == sorted(shares)
        assert len(shares) > 2
        assert shares[-1] == 1.0
        at_once = model.logits(IDS)
    monkeypatch.undo()
    assert np.array_equal(at_once, logits(PATHS[0], IDS, True))


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system cannot be asked to forget a file")
def test_a_disk_reads_ahead(tmp_path: Path) -> None:
    """It reads more than the system reads for one request."""
    size = 24 << 20
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    with path.open("rb") as opened:
        os.fdatasync(opened.fileno())  # pages that are not written stay in memory
        file = _native.WeightFile(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file.read_ahead(0, size)
    end = time.monotonic() + 30
    while file.resident_share(0, size) < 1:
        assert time.monotonic() < end, "the disk does not read"
        time.sleep(0.01)


def test_matrices_are_read_ahead_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(WeightFiles, "are_in_memory", lambda files, share: False)
    monkeypatch.setattr(loading, "SOON_BYTES", 0)
    monkeypatch.setattr(
        WeightFiles, "read_ahead", lambda files, matrices: asked.extend(matrix.place for matrix in matrices)
    )
    with chaski.load(PATHS[-1], context=64) as model:
        places = sorted(info.offset for info in open_gguf(PATHS[-1]).tensors.values() if len(info.shape) == 2)
        assert model.logits(IDS[:1]).size
    assert sorted(asked) == places


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_file_that_shrinks_while_it_is_needed_is_an_error(tmp_path: Path, is_loaded: bool) -> None:
    path = tmp_path / "shrinking.gguf"
    path.write_bytes(PATHS[0].read_bytes())
    with chaski.load(path, context=64) as model:
        os.truncate(path, 5000)
        with pytest.raises(chaski.ModelError, match=r"weights of .*shrinking\.gguf cannot be read"):
            model.wait_loaded() if is_loaded else model.logits(IDS)


def test_a_file_that_shrinks_later_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "shrinking.gguf"
    path.write_bytes(PATHS[0].read_bytes())
    with chaski.load(path, context=64) as model:
        model.wait_loaded()
        os.truncate(path, 5000)
        assert np.array_equal(model.logits(IDS), logits(PATHS[0], IDS, True))


def test_a_failure_of_the_thread_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("no disk")

    with chaski.load(PATHS[0], context=64) as model:
        monkeypatch.setattr(_native, "lay_out", fail)
        for use in (model.wait_loaded, lambda: model.logits(IDS)):
            with pytest.raises(ModelError, match=r"f16\.gguf.*no disk"):
                use()


def test_weights_that_memory_has_no_room_for_are_read_from_the_file(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit is like `ulimit -v`; some weights are already laid out."""
    expected = logits(PATHS[0], IDS, True)
    real, calls = _native.lay_out, []

    def fail(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 2:
            raise MemoryError("no room")
        real(*arguments)

    with chaski.load(PATHS[0], context=64) as model:
        monkeypatch.setattr(_native, "lay_out", fail)
        model.wait_loaded()
        assert np.array_equal(model.logits(IDS), expected)
        assert np.array_equal(model.logits(IDS), expected)
    assert "memory ran out while the weights of" in caplog.text


def test_without_room_for_a_thread_weights_are_laid_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits(PATHS[0], IDS, True)
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "chaski-loading":
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert np.array_equal(logits(PATHS[0], IDS, True), expected)


@pytest.mark.parametrize("error", [MemoryError("x"), RuntimeError("can't start new thread")])
def test_loading_without_memory_is_an_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("chaski.runner.loading.loader.open_tiers", fail)
    with pytest.raises(OutOfMemoryError, match=r"(memory ended|no thread .*) while the model was loaded"):
        chaski.load(PATHS[0], context=64)


def test_closing_does_not_wait_for_the_rest() -> None:
    model = chaski.load(PATHS[0], context=64)
    assert is_loading()
    model.close()
    assert not is_loading()
