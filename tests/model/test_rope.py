from __future__ import annotations

from pathlib import Path

import pytest

import chaski
from chaski.errors import ModelError, UnsupportedError
from tests.tiny_llama import write_tiny_llama

YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 64}


def load_with(folder: Path, **scaling: object) -> chaski.LLM:
    entries = {f"llama__rope__scaling__{name}": value for name, value in scaling.items()}
    return chaski.load(write_tiny_llama(folder / "tiny.gguf", **entries))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "dynamic", "factor": 2.0}, "scaling.type = 'dynamic' is not supported"),
        ({**YARN, "yarn_ext_factor": 0.5}, "yarn_ext_factor is not 1"),
        ({**YARN, "yarn_attn_factor": 1.2}, "yarn_attn_factor is not 1"),
    ],
)
def test_what_would_change_the_text_is_refused(
    tmp_path: Path, scaling: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        load_with(tmp_path, **scaling)


def test_a_factor_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"factor = 0\.0 must be positive"):
        load_with(tmp_path, type="linear", factor=0.0)


def test_what_is_known_runs(tmp_path: Path) -> None:
    for scaling in ({"type": "none"}, {"type": "linear", "factor": 2.0}, {**YARN, "yarn_attn_factor": 1.0}):
        with load_with(tmp_path, **scaling) as model:
            assert model.logits([1, 2, 3]).shape == (3, 265)
