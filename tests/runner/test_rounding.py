"""Answers do not depend on the rounding mode that another library of the process sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import chaski
from chaski import _native
from tests.backends import about_the_processor

pytestmark = about_the_processor

X86 = _native.use_float_mode() & 0x1F80 == 0x1F80
UPWARD, TO_ZERO, NO_DENORMALS = (0x5F80, 0x7F80, 0x9FC0) if X86 else (1 << 22, 3 << 22, 1 << 24)
PROMPT = list(range(5, 60))
OPTIONS: dict[str, Any] = {"num_predict": 12, "seed": 3, "temperature": 1.0, "logprobs": True}


@contextmanager
def float_mode(mode: int) -> Iterator[None]:
    before = _native.use_float_mode(mode)
    try:
        yield
    finally:
        assert _native.use_float_mode(before) & ~0x3F == mode & ~0x3F, "the caller's mode is gone"


def computed(path: Path) -> list[Any]:
    with chaski.load(path, context=128, threads=2, prompt_cache=False) as model:
        model.wait_loaded()
        answer = model.generate(PROMPT, **OPTIONS)
        return [answer.token_ids, answer.logprobs, model.logits(PROMPT).tobytes()]


@pytest.mark.parametrize("mode", [UPWARD, TO_ZERO, NO_DENORMALS])
def test_a_mode_of_another_library_changes_nothing(tiny_llama: Path, mode: int) -> None:
    expected = computed(tiny_llama)
    with float_mode(mode):
        assert np.float32(1) + np.float32(2**-30) > 1 or mode != UPWARD, "the mode has no effect here"
        assert computed(tiny_llama) == expected
    with chaski.load(tiny_llama, context=128, threads=2, prompt_cache=False) as model, float_mode(mode):
        assert model.logits(PROMPT).tobytes() == expected[2]
        answer = model.generate(PROMPT, **OPTIONS)
        assert [answer.token_ids, answer.logprobs] == expected[:2]


def test_threads_that_begin_in_another_mode(tiny_llama: Path) -> None:
    expected, found = computed(tiny_llama), []
    with float_mode(UPWARD):
        thread = Thread(target=lambda: found.extend(computed(tiny_llama)))
        thread.start()
        thread.join()
    assert found == expected


def test_native_functions_keep_the_mode_to_themselves() -> None:
    row = np.linspace(-9, 0, 1000, dtype=np.float32)
    expected = _native.exponential_sum(row, 0.0), _native.exponentials(row, 0.0).tobytes()
    with float_mode(UPWARD):
        assert (_native.exponential_sum(row, 0.0), _native.exponentials(row, 0.0).tobytes()) == expected
