"""Families whose checkpoints are random numbers: against transformers, and against llama.cpp's converter."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from tests.families import (
    EMBEDDERS,
    FIRST,
    FIRST_EMBEDDERS,
    NAMES,
    VARIANTS,
    converted,
    expected,
    first_of_each,
    settings_of,
    texts,
)
from tests.tiers import long_unless

TOLERANCE = 1e-3
WITNESSED = [variant for variant in [*VARIANTS, *EMBEDDERS] if "file" in expected(variant)]


@pytest.mark.parametrize("variant", long_unless(FIRST, VARIANTS))
def test_logits_and_greedy_tokens_are_those_of_transformers(variant: str) -> None:
    wanted = expected(variant)
    prompt = wanted["prompt"].tolist()
    ids = [*prompt, *wanted["tokens"].tolist()]
    with chaski.load(converted(variant), context=128, kv_type="f32", threads=1) as model:
        logits = np.asarray(model.logits(ids))
    assert wanted["logits"].std() > 0.1
    np.testing.assert_allclose(logits[wanted["places"]], wanted["logits"], rtol=0, atol=TOLERANCE)
    assert logits[len(prompt) - 1 : -1].argmax(axis=1).tolist() == wanted["tokens"].tolist()


@pytest.mark.parametrize("variant", long_unless(FIRST_EMBEDDERS, EMBEDDERS))
def test_vectors_are_those_of_the_oracle(variant: str) -> None:
    wanted = expected(variant)["vectors"]
    with chaski.load(converted(variant), context=128, threads=1, parallel=1) as model:
        found = np.asarray(model.embed(texts(variant)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", long_unless(first_of_each(WITNESSED), WITNESSED))
def test_the_file_is_that_of_llama_cpps_converter(variant: str) -> None:
    """`differs` of a configuration names keys and tensors that it writes otherwise, or not at all."""
    family, _, name = variant.partition("/")
    differs = settings_of(family)[name].get("differs", ())
    wanted = expected(variant)["file"]
    with open_gguf(converted(variant)) as file:
        tensors = {
            tensor.name: [list(tensor.shape), hashlib.sha256(tensor.data).hexdigest()[:16]]
            for tensor in file.tensors.values()
        }
        metadata = {key: plain(value) for key, value in file.metadata.items() if is_of_model(key)}
    assert without(tensors, differs) == without(wanted["tensors"], differs)
    metadata, theirs = without(metadata, differs), without(wanted["metadata"], differs)
    assert metadata.keys() == theirs.keys()
    for key, value in theirs.items():
        assert metadata[key] == (pytest.approx(value) if isinstance(value, float) else value), key


def is_of_model(key: str) -> bool:
    return not key.startswith(("general.", "tokenizer."))


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def without(entries: dict[str, Any], differs: list[str]) -> dict[str, Any]:
    """Leave out entries whose names end with one of these."""
    return {key: value for key, value in entries.items() if not key.endswith(tuple(differs))}


def test_every_family_has_three_configurations() -> None:
    counts = {family: len(settings_of(family)) for family in NAMES}
    assert {family: count for family, count in counts.items() if count < 3} == {}
