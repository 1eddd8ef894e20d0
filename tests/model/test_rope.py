"""Scalings of rope: chaski reads each setting like llama.cpp, or refuses it by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.ml.nn.rope import Yarn
from chaski.model.rope import RopeConfig, read_rope
from chaski.runner.channels.worker.client import Worker
from tests.tiny_llama import write_tiny_llama

DATA = Path(__file__).parents[1] / "data"
YARN = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 64}
LINEAR = {"scaling__type": "linear", "scaling__factor": 4.0}
IDS = list(range(1, 60))


def write(folder: Path, entries: dict[str, object]) -> Path:
    named = {f"llama__rope__{name}": value for name, value in entries.items()}
    return write_tiny_llama(folder / "tiny.gguf", **named)


def logits(folder: Path, entries: dict[str, object]) -> np.ndarray:
    with chaski.load(write(folder, entries), kv_type="f32") as model:
        return np.asarray(model.logits(IDS))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"scaling__type": "dynamic", "scaling__factor": 2.0}, "scaling.type = 'dynamic' is not supported"),
        ({"scaling__type": "longrope"}, "scaling.type = 'longrope' is not supported"),
        ({**YARN, "scaling__yarn_ext_factor": 0.5}, r"yarn_ext_factor = 0\.5 is not supported"),
        ({**LINEAR, "scaling__yarn_ext_factor": 1.0}, r"yarn_ext_factor = 1\.0 is not supported"),
    ],
)
def test_what_would_change_the_text_is_refused(
    tmp_path: Path, entries: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        chaski.load(write(tmp_path, entries))


@pytest.mark.parametrize("key", ["scaling__factor", "scale_linear"])
def test_a_factor_must_not_be_negative(tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelError, match=r" = -2\.0 must not be negative"):
        chaski.load(write(tmp_path, {key: -2.0}))


@pytest.mark.parametrize(
    ("entries", "same"),
    [
        ({"scaling__factor": 4.0}, LINEAR),
        ({"scale_linear": 4.0}, LINEAR),
        ({**LINEAR, "scale_linear": 2.0}, LINEAR),
        ({"scaling__type": "", "scaling__factor": 4.0}, LINEAR),
        ({"scaling__type": "none", "scaling__factor": 4.0}, {}),
        ({"scaling__type": "default", "scaling__factor": 0.0}, {}),
        ({"scaling__type": "linear", "scaling__factor": 0.0}, {}),
        ({**YARN, "scaling__yarn_attn_factor": 1.5}, YARN),
        ({**YARN, "scaling__yarn_ext_factor": 1.0}, YARN),
        ({**YARN, "scaling__yarn_ext_factor": -1.0}, YARN),
        ({**YARN, "scaling__original_context_length": 0}, {**YARN, "scaling__original_context_length": 256}),
        ({**LINEAR, "scaling__yarn_attn_factor": 1.5}, LINEAR),
    ],
)
def test_other_ways_to_say_the_same(
    tmp_path: Path, entries: dict[str, object], same: dict[str, object]
) -> None:
    np.testing.assert_array_equal(logits(tmp_path, entries), logits(tmp_path, same))


SCALINGS: list[dict[str, object]] = [
    {"scaling__factor": 4.0},
    {"scale_linear": 4.0},
    LINEAR,
    {**LINEAR, "scaling__yarn_attn_factor": 1.5, "scaling__yarn_ext_factor": 0.0},
    {**LINEAR, "scaling__attn_factor": 1.5},
    YARN,
    {**YARN, "scaling__yarn_attn_factor": 1.5},
    {**YARN, "scaling__attn_factor": 1.5},
    {"scaling__type": "yarn", "scaling__factor": 4.0},
]


def test_each_of_them_changes_the_numbers(tmp_path: Path) -> None:
    plain = logits(tmp_path, {})
    for entries in SCALINGS:
        assert np.abs(logits(tmp_path, entries) - plain).max() > 0.05, entries


@pytest.mark.oracle
@pytest.mark.parametrize("entries", SCALINGS, ids=str)
def test_llama_cpp_reads_the_same(tmp_path: Path, entries: dict[str, object]) -> None:
    """It compares the likeliest tokens after a prompt and their probabilities."""
    pytest.importorskip("xllamacpp")
    path = write(tmp_path, entries)
    options = {"num_predict": 1, "temperature": 0, "logprobs": True, "top_logprobs": 20}
    prompts = [IDS, [*IDS, 7], [*IDS, 9, 11], [*IDS, 100]]
    compared = 0
    with (
        Worker(str(path), engine="llama.cpp", threads=1, kv_type="f32") as worker,
        chaski.load(path, threads=1, kv_type="f32") as model,
    ):
        for ids in prompts:
            theirs, ours = (each.generate(ids, **options).logprobs for each in (worker, model))
            if theirs and ours:  # else the answer is an end token
                compared += 1
                _check_near(ours[0], theirs[0])
    assert compared


def _check_near(ours: Any, theirs: Any) -> None:
    expected = {one.token_id: one.logprob for one in theirs.top_logprobs}
    shared = {one.token_id: one.logprob for one in ours.top_logprobs if one.token_id in expected}
    assert len(shared) >= 18
    for token_id, logprob in shared.items():
        assert logprob == pytest.approx(expected[token_id], abs=0.03)


def test_yarn_divides_by_the_factors_of_a_file() -> None:
    """With Llama 3's factors and YaRN in one file, ggml divides each angle, then scales it."""
    yarn = RopeConfig(8, 10000.0, yarn=Yarn(4.0, 64))
    factors = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    plain, divided = yarn.rope().frequencies, yarn.rope(factors=factors).frequencies
    np.testing.assert_allclose(divided, plain / factors, rtol=1e-6)


def test_longrope_with_a_factor_is_scaled_too() -> None:
    file = open_gguf(DATA / "architectures" / "phi3-long.gguf")
    assert read_rope(file, 16).scale == 1.0
    stretched = {**file.metadata, "phi3.rope.scaling.type": "longrope", "phi3.rope.scaling.factor": 4.0}
    assert read_rope(GGUFFile(file.path, stretched, dict(file.tensors)), 16).scale == 0.25
