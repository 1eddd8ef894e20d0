"""Kept prefixes serve a model that is loaded with another context, unless it computes otherwise then."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import chaski
from chaski.runner.prefix import naming, tiers
from chaski.runner.prefix.tiers import PrefixTiers
from chaski.runner.states.keeping import answered_state
from chaski.runner.states.state_calls import KeepPrefixes, SavedState, TakePrefixes
from tests.random_mixes import DATA, MODELS

PROMPT = [int(token) for token in np.random.default_rng(3).integers(5, 60, 60)]
FEW = ("llama", "qwen3", "gemma3, window 20", "gemma4, window 31", "gpt-oss, window 40", "llama4", "lfm2")
MORE = ("qwen35 with heads", "phi3, window 24")


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Keep prefixes on disk, in small blocks, and use them even if computing were faster."""
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(PrefixTiers, "_pays", lambda *_: True)
    with patch.object(naming, "BLOCK", 16), patch.object(tiers, "_FEWEST", 1):
        yield


def answer(model: chaski.LLM) -> chaski.Answer:
    return model.generate(PROMPT, temperature=1.0, seed=5, num_predict=6)


def answered(path: Path | str, context: int, **options: Any) -> chaski.Answer:
    with chaski.load(path, context=context, **options) as model:
        return answer(model)


@pytest.mark.parametrize("name", [*FEW, *MORE])
def test_another_context_takes_over_what_was_computed(tmp_path: Path, name: str) -> None:
    path = next(model for model in MODELS if model.name == name).path(tmp_path)
    answered(path, 96)
    again = answered(path, 112, parallel=3)
    assert again.token_ids == answered(path, 112, prompt_cache=False).token_ids
    assert again.done.disk_tokens >= 32


def test_a_rope_that_depends_on_the_context_is_another_model() -> None:
    path = DATA / "architectures" / "phi3-short.gguf"  # long factors beyond 128 tokens
    answered(path, 96)
    assert answered(path, 112).done.disk_tokens > 0
    other = answered(path, 160)
    assert other.cached_tokens == 0
    assert other.token_ids == answered(path, 160, prompt_cache=False).token_ids


def move(model: chaski.LLM, call: KeepPrefixes | TakePrefixes) -> SavedState:
    return answered_state(model.engine, model.prompts, call)


def test_memory_goes_from_one_process_to_the_next(tiny_llama: Path, tmp_path: Path) -> None:
    load = partial(chaski.load, tiny_llama, prompt_cache="memory")
    kept = tmp_path / "kept"
    kept.touch()
    with load(context=96) as model:
        assert model.engine.tiers is not None
        answer(model)
        names = model.engine.tiers.tree.names()
        model.engine.tiers.tree.pin(names[:1], 300)
        assert move(model, KeepPrefixes(str(kept))).tokens >= len(PROMPT) - 1
    with load(context=128) as model:
        assert model.engine.tiers is not None
        assert move(model, TakePrefixes(str(kept))).tokens >= len(PROMPT) - 1
        assert model.engine.tiers.tree.pins() == [(names[0], 300)]
        again = answer(model)
        assert again.done.memory_tokens == len(PROMPT) - 1
        assert again.token_ids == answered(tiny_llama, 128, prompt_cache=False).token_ids


def test_memory_of_another_model_is_not_taken(tiny_llama: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    with chaski.load(tiny_llama, context=96, kv_type="f16") as model:
        answer(model)
        move(model, KeepPrefixes(str(kept)))
    with chaski.load(tiny_llama, context=96) as model:
        assert move(model, TakePrefixes(str(kept))).tokens == 0
        assert answer(model).cached_tokens == 0
        with pytest.raises(chaski.StateError, match="cannot be read"):
            move(model, TakePrefixes(str(tmp_path / "nothing")))
        kept.write_bytes(kept.read_bytes()[:20])
        with pytest.raises(chaski.StateError, match="cannot be read"):
            move(model, TakePrefixes(str(kept)))
