"""What tests of running models share."""

from __future__ import annotations

import pytest

import chaski


@pytest.fixture(scope="session")
def endless() -> str:
    """A prompt that the bundled model never stops to continue at temperature 0."""
    with chaski.load("guide", threads=1) as model:
        for number in range(200):
            answer = model.generate(str(number), temperature=0, num_predict=1500)
            if answer.done_reason == "length":
                return str(number)
    raise AssertionError("the bundled model ends every answer: choose other prompts")
