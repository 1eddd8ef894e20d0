from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import ChaskiError, ModelNotFoundError, OptionError, UnsupportedError
from tests.backends import BACKENDS, about_plain_attention
from tests.tiny_llama import CONTEXT, write_tiny_llama


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"context": 0}, OptionError, "context = 0 must be a whole number of at least 1"),
        ({"context": 1.5}, OptionError, "context = 1.5"),
        ({"context": 10**12}, OptionError, "context = 1000000000000 tokens is more than the 1073741824 that"),
        (
            {"context": 1 << 29, "parallel": 3},
            OptionError,
            "for each of 3 sequences is more than the 357913941",
        ),
        ({"parallel": 0}, OptionError, "parallel = 0 must be"),
        ({"threads": 0}, OptionError, "threads = 0 must be"),
        ({"parallel": 4, "num_batch": 3}, OptionError, "num_batch = 3 must be a whole number of at least 4"),
        (
            {"kv_type": "q3"},
            UnsupportedError,
            "type 'q3' are not supported; supported: f32, f16, bf16, i16, q8_0, q4_0",
        ),
        ({"kv_type": "f16:q3"}, UnsupportedError, "type 'f16:q3' are not supported"),
        ({"kv_type": "f16:"}, UnsupportedError, "type 'f16:' are not supported"),
        ({"backend": "abacus"}, OptionError, "backend 'abacus' is unknown"),
    ],
)
def test_bad_arguments(
    tiny_llama: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        chaski.load(tiny_llama, **options)


def test_a_missing_model() -> None:
    with pytest.raises(ModelNotFoundError, match=r"no file 'nowhere\.gguf' and no model of that name"):
        chaski.load("nowhere.gguf")


def test_the_context_is_the_models_own(tiny_llama: Path, tmp_path: Path) -> None:
    with chaski.load(tiny_llama) as model:
        assert model.context == CONTEXT
    with chaski.load(write_tiny_llama(tmp_path / "long.gguf", llama__context_length=100_000)) as model:
        assert model.context == 100_000


def test_a_long_context_takes_memory_when_it_is_used(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "long.gguf", llama__context_length=262_144)
    with chaski.load(path, prompt_cache=False, backend="cpu") as model:
        model.wait_loaded()
        assert model.context == 262_144
        assert (unused := model.unused_bytes) > 100_000_000
        before = _resident_bytes()
        model.generate([1] * 100, num_predict=2)
        assert unused - model.unused_bytes == unused // 262_144 * 101
        assert _resident_bytes() - before < 20_000_000
    with chaski.load(path, context=1000) as model:
        assert model.unused_bytes == 0


def test_a_limit_of_addresses_counts_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_llama(tmp_path / "long.gguf", llama__context_length=262_144)
    monkeypatch.setattr("chaski.runner.loading.reservation.addresses_left", lambda: 100_000_000)
    with chaski.load(path, backend="cpu") as model:
        assert 4096 < model.context < 262_144
        assert model.context_reason == "what the memory allows; the model's own is 262,144"


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_sequences_share_the_memory_of_a_chosen_context(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama, most_parallel=4) as model:
        assert (model.engine.parallel, model.context) == (4, CONTEXT)
        assert model.context_reason == "the model's own"
    with chaski.load(tiny_llama, most_parallel=4, parallel=2) as model:
        assert model.engine.parallel == 2
    with pytest.raises(chaski.OutOfMemoryError):
        chaski.load(tiny_llama, claimed_memory=1 << 60, backend="cpu")


def test_who_has_set_the_context(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "64")
    with chaski.load(tiny_llama) as model:
        assert (model.context, model.context_reason) == (64, "OLLAMA_CONTEXT_LENGTH")
    with chaski.load(tiny_llama, context=32) as model:
        assert (model.context, model.context_reason) == (32, "as asked for")


def test_a_context_beyond_the_models_is_warned_of(tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    with chaski.load(tiny_llama, context=CONTEXT + 1) as model:
        assert model.context == CONTEXT + 1
    assert f"tiny.gguf was made for {CONTEXT} tokens" in caplog.text


def test_the_environment_gives_defaults(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "100")
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", "3")
    with chaski.load(tiny_llama) as model:
        assert model.context == 100
        assert len(model.engine._prefix_cache.slots) == 3
    with chaski.load(tiny_llama, context=50, parallel=1) as model:
        assert model.context == 50
        assert len(model.engine._prefix_cache.slots) == 1


def test_a_default_context_is_never_beyond_the_models(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "32768")
    with chaski.load(tiny_llama) as model:
        assert model.context == CONTEXT
    assert caplog.text == ""


def test_no_batch_is_larger_than_all_contexts(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama, context=20, parallel=2) as model:
        assert model.engine._program.max_tokens == 40


def test_progress_goes_from_0_to_1(tiny_llama: Path) -> None:
    shares: list[float] = []
    chaski.load(tiny_llama, progress=shares.append).close()
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_keys_and_values_in_other_types(tmp_path: Path) -> None:
    heads_of_32 = {"llama__attention__head_count": 2, "llama__attention__head_count_kv": 1}
    path = write_tiny_llama(tmp_path / "wide.gguf", **heads_of_32)
    bits = {"f32": 32, "f16": 16, "bf16": 16, "i16": 17, "q8_0": 8.5, "q4_0": 4.5}
    for kv_type in (*bits, "f32:f16", "q8_0:q4_0"):
        with chaski.load(path, kv_type=kv_type) as model:
            keys, _, values = kv_type.partition(":")
            rows = model.memory().cache / (2 * CONTEXT * 32 / 8)  # two layers of one head of 32
            assert rows == pytest.approx(bits[keys] + bits[values or keys], rel=0.12)
            assert model.generate("hello", temperature=0, num_predict=8).text


@about_plain_attention
@pytest.mark.parametrize("backend", BACKENDS)
def test_quantized_keys_and_values_need_flash_attention(
    tiny_llama: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="type q4_0 need flash attention, which is switched off: remove"):
        chaski.load(tiny_llama, kv_type="f16:q4_0", flash_attention=False, backend=backend)
    monkeypatch.setenv("OLLAMA_FLASH_ATTENTION", "0")
    monkeypatch.setenv("OLLAMA_KV_CACHE_TYPE", "q8_0")
    with pytest.raises(OptionError, match="type q8_0 need flash attention"):
        chaski.load(tiny_llama, backend=backend)


@about_plain_attention
def test_both_forms_of_attention_answer_alike(tiny_llama: Path) -> None:
    found = []
    for flash in (True, False):
        with chaski.load(tiny_llama, flash_attention=flash, kv_type="f32") as model:
            found.append(model.logits(list(range(3, 90))))
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_heads_that_are_not_whole_blocks(tiny_llama: Path) -> None:
    for backend in BACKENDS:
        with pytest.raises(UnsupportedError, match=r"values of type q8_0 come in blocks of 32, .* use f16"):
            chaski.load(tiny_llama, kv_type="f16:q8_0", backend=backend)


def test_memory_is_reserved_at_load(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama, parallel=2) as model:
        before = model.memory()
        model.generate("hello", temperature=0)
        assert model.memory() == before
        assert min(before.weights, before.cache, before.plans) > 0


def test_the_garbage_collector_is_as_before(tiny_llama: Path) -> None:
    assert gc.isenabled()
    chaski.load(tiny_llama, context=64, threads=1).close()
    assert gc.isenabled()
    with pytest.raises(ChaskiError):
        chaski.load(tiny_llama, context=64, parallel=1 << 30)
    assert gc.isenabled()
