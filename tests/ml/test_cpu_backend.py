"""The errors of the cpu backend."""

from __future__ import annotations

from pathlib import Path

import pytest

import chaski
from chaski import _native
from chaski.errors import OutOfMemoryError
from chaski.formats.gguf import open_gguf
from chaski.ml import CPUOptions, open_backend
from chaski.ml.graph import DType, KVRole
from chaski.model.registry import build_model
from chaski.model.weights import bind_weights
from tests.backends import about_the_processor

pytestmark = about_the_processor

FILE = Path(__file__).parent.parent / "data" / "llama" / "llama31.f32.gguf"


def test_storage_that_cannot_fit_is_refused_with_sizes() -> None:
    backend = open_backend("cpu")
    backend.kv_buffer(KVRole.KEYS, 10**9, 5, 100, DType.F16)
    with pytest.raises(chaski.OutOfMemoryError, match=r"need 1000\.00 GB, but .* GB"):
        backend.load(lambda _: None)


def test_a_limit_of_the_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.ml.limits._address_limits", lambda: [("ulimit -v", 3 * 10**9)])
    backend = open_backend("cpu")
    backend.kv_buffer(KVRole.KEYS, 10**9, 5, 100, DType.F16)
    with pytest.raises(chaski.OutOfMemoryError, match=r"limited by ulimit -v to 3\.00 GB; use"):
        backend.load(lambda _: None)


def test_a_context_that_cannot_fit_is_refused_when_loading() -> None:
    with pytest.raises(
        chaski.OutOfMemoryError, match=r"smaller context(.*\n)+.* layers, all tokens: 1073741824 cells"
    ):
        chaski.load(FILE, context=2**30)


def test_a_file_that_shrinks_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "shrinking.gguf"
    path.write_bytes(FILE.read_bytes())
    with open_gguf(path) as file:
        model = build_model(file)
        path.rename(tmp_path / "kept.gguf")
        path.write_bytes(FILE.read_bytes()[:5000])
        with pytest.raises(chaski.ModelError, match=r"weights of .*shrinking\.gguf cannot be read"):
            bind_weights(model, file, open_backend("cpu"), lambda _: None)


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_below_one_are_refused(threads: int) -> None:
    with pytest.raises(chaski.OptionError, match="threads"):
        open_backend("cpu", CPUOptions(threads=threads))


def test_an_unknown_instruction_set_names_the_known_ones() -> None:
    with pytest.raises(chaski.OptionError, match="'avx9' is not available; this machine has: portable"):
        open_backend("cpu", CPUOptions(isa="avx9"))


def test_threads_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by letting each start of a thread fail."""

    def refuse(threads: int) -> None:
        raise RuntimeError("Resource temporarily unavailable")

    monkeypatch.setattr(_native, "ThreadPool", refuse)
    with pytest.raises(OutOfMemoryError, match=r"2 threads cannot be started: Resource .*CHASKI_THREADS"):
        open_backend("cpu", CPUOptions(threads=2))
