"""Types of few bits, computed natively and by the real llama.cpp.

The exact numbers are those that the native engine computes from the same weights as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.formats.quant import UNSUPPORTED_TYPES, QuantType
from chaski.runner.channels.worker.client import Worker
from tests.mixed_llama import Pair, write_mixed_llama

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

PROMPT = "the other end in the"
NEAR = 0.2  # both round activations to int8

NAMES = (
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
    *("TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "NVFP4"),
)


@pytest.fixture(params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    return write_mixed_llama(tmp_path, [QuantType[request.param]])


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "1")


def test_the_scores_are_as_exact_as_those_of_llama_cpp(pair: Pair, one_core: None) -> None:
    with Worker(pair.stored, engine="llama.cpp") as worker:
        assert worker.info().engine == "llama.cpp"
        answer = worker.generate(PROMPT, temperature=0, num_predict=16, logprobs=True, top_logprobs=5)
    exact, ours = (scores(path, answer.token_ids) for path in (pair.plain, pair.stored))
    assert len(answer.logprobs) == 16
    assert exact.std() > 0.4, "the model has opinions"
    chosen = [top for token in answer.logprobs for top in token.top_logprobs]
    places = np.repeat(np.arange(16), 5), [top.token_id for top in chosen]
    theirs = np.array([top.logprob for top in chosen])
    their_error, our_error = np.abs(theirs - exact[places]), np.abs(ours[places] - exact[places])
    assert their_error.max() < NEAR
    assert our_error.max() < NEAR
    assert our_error.mean() < 1.25 * their_error.mean()


def scores(path: Path, continuation: Sequence[int]) -> np.ndarray:
    """Return the logarithms of the probabilities of each token of a continuation of PROMPT, natively."""
    with chaski.load(path) as model:
        prompt = model.tokenize(PROMPT)
        logits = model.logits([*prompt, *continuation]).astype(np.float64)[len(prompt) - 1 : -1]
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_every_type_of_llama_cpp_is_known_here() -> None:
    import xllamacpp

    theirs = {name.removeprefix("GGML_TYPE_"): int(n) for name, n in xllamacpp.ggml_type.__members__.items()}
    known = {type.name: int(type) for type in QuantType}
    assert theirs.pop("COUNT") > max(theirs.values())
    assert {name: n for name, n in theirs.items() if n not in UNSUPPORTED_TYPES}.items() <= known.items()
