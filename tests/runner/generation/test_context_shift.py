"""What a full context drops is the same on every device."""

from __future__ import annotations

from pathlib import Path

import pytest

import chaski
from chaski.ml import BACKENDS, open_backend
from chaski.runner.generation.request import SHIFT_MULTIPLE
from tests.foreign import NAMES

PATH = Path(__file__).parents[2] / "data" / "architectures" / "qwen3.gguf"
PROMPT = [5, 9, 2, 7, 1, 3, 8, 8, 4, 6, 5, 5, 2, 9, 9, 1, 4, 7]


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_stay_where_every_device_reads_them_fastest(backend: str) -> None:
    opened = open_backend(backend)
    config = opened.cache_config
    opened.close()
    assert SHIFT_MULTIPLE % config.alignment == 0
    assert SHIFT_MULTIPLE % config.page == 0


def shifted(backend: str, num_keep: int) -> list[int]:
    options = {"num_predict": 120, "temperature": 0, "ignore_eos": True, "num_keep": num_keep}
    with chaski.load(PATH, backend=backend, kv_type="f32", context=64, num_batch=24) as model:
        result = model.generate(PROMPT, **options)
    assert result.done.shifted_tokens > 0
    return list(result.token_ids)


@pytest.mark.parametrize("backend", NAMES)
def test_shifted_answers_are_those_of_the_reference(backend: str) -> None:
    assert shifted(backend, 16) == shifted("reference", 16)
