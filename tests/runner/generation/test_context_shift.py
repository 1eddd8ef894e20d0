"""A full context drops the same tokens on every device."""

from __future__ import annotations

from pathlib import Path

import pytest

import chaski
from chaski.ml import BACKENDS, open_backend
from chaski.runner.generation.request import SHIFT_MULTIPLE
from tests.backends import CHOSEN
from tests.foreign import NAMES

DATA = Path(__file__).parents[2] / "data" / "architectures"
PROMPT = [5, 9, 2, 7, 1, 3, 8, 8, 4, 6, 5, 5, 2, 9, 9, 1, 4, 7]


@pytest.mark.parametrize("backend", sorted(BACKENDS.keys() - ({"cuda", "sharded"} - {CHOSEN})))
def test_tokens_stay_where_every_device_reads_them_fastest(backend: str) -> None:
    opened = open_backend(backend)
    config = opened.cache_config
    opened.close()
    assert SHIFT_MULTIPLE % config.alignment == 0
    assert SHIFT_MULTIPLE % config.page == 0


def shifted(backend: str, num_keep: int, name: str = "qwen3") -> list[list[int]]:
    """Return two concurrent answers whose prompts share pages, and which fill the context twice."""
    options = {"num_predict": 90, "temperature": 0, "ignore_eos": True, "num_keep": num_keep}
    path = DATA / f"{name}.gguf"
    with chaski.load(path, backend=backend, kv_type="f32", context=64, num_batch=24, parallel=2) as model:
        results = model.generate_many([PROMPT, [*PROMPT, 3, 3]], **options)
    assert min(result.done.shifted_tokens for result in results) > 16
    return [list(result.token_ids) for result in results]


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize(
    ("name", "num_keep"), [("qwen3", 16), pytest.param("qwen3", 4, marks=pytest.mark.long), ("gemma3", 20)]
)
def test_shifted_answers_are_those_of_the_reference(backend: str, name: str, num_keep: int) -> None:
    """This includes kept parts that end within a page, and layers with a window."""
    assert shifted(backend, num_keep, name) == shifted("reference", num_keep, name)
