"""A few random rounds of mixtures that read experts; `python -m tests.random_experts` runs any number."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends import about_the_processor
from tests.random_experts import NAMES, Round

pytestmark = about_the_processor


@pytest.mark.long
@pytest.mark.parametrize("seed", range(len(NAMES)), ids=NAMES)
def test_random_requests_are_told_what_a_model_in_memory_tells(seed: int, tmp_path: Path) -> None:
    mix = Round(seed, tmp_path, 24)
    mix.run()
    assert mix.wrong == [], mix
    assert mix.counts["answers"]


@pytest.mark.long
def test_random_requests_with_experts_on_a_gpu(tmp_path: Path) -> None:
    mix = Round(len(NAMES), tmp_path, 8)
    mix.run()
    assert mix.has_gpu
    assert mix.wrong == [], mix
    assert mix.counts["answers"]
