"""Two real models against llama.cpp: greedy tokens, and the perplexity of a text in every type.

They need xllamacpp and the user's package index, so they are run by hand.

Both engines round activations to eight bits before they multiply them by quantized weights, in different
ways: llama.cpp with a half-precision scale for each 32 of them, or 256 for K types, and chaski by its own
rule. This moves each logit by about 0.1 away from exact arithmetic, so the two may choose different tokens
where two tokens are nearly as likely. With F32 weights nothing is rounded, and the tokens are equal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.importance import ImportanceMatrix, read_importance
from chaski.runner.evaluation.chunks import Chunks
from tests.llama_cpp_logits import surprisals
from tests.real_weights import fetch_gemma3, fetch_smollm2
from tools.measure_types import (
    BY_IMPORTANCE,
    TEXT,
    TYPES,
    write_by_importance,
    write_exact,
    write_mixture,
)

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def add(a, b):",
    "Water boils at",
    "The llama is an animal that",
    "In 1969, people",
    "A recipe for bread:",
    "Dear Sir,",
    "1, 2, 3, 4,",
    "The meaning of life is",
]
COUNT = 64
CONTEXT = 512
# The text of the tables in the documentation, and more, because perplexities need many tokens.
TEXTS = (TEXT, *(TEXT.parents[2] / "docs" / name for name in ("architecture.md", "security.md")))
NUM_CHUNKS, UNSCORED = 20, 65
# Sequences without a common beginning, for distances from exact logits.
NUM_SEQUENCES, SEQUENCE_LENGTH = 12, 32
# Only models that are trained for them predict with these types; those of others vary by tens of percent with
# noise. What holds for them is the distance from exact logits.
UNPREDICTING = ("TQ1_0", "TQ2_0", "Q1_0", "Q2_0")
# In exact arithmetic, two tokens that the engines choose differently are this near.
NEAR = 0.6
# BF16 rounds activations, too, and llama.cpp's F16 does.
NEAR_UNROUNDED = 0.2
FETCHED: dict[str, Callable[[Path], Path]] = {"smollm2": fetch_smollm2, "gemma3": fetch_gemma3}


@pytest.fixture(scope="module", params=FETCHED)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FETCHED[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def exact(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the same weights in F32."""
    path = tmp_path_factory.mktemp("exact") / "exact.gguf"
    write_exact(model, path)
    yield path
    path.unlink()


def llama_cpp(path: Path, **asked: Any) -> Any:
    command = [sys.executable, "-m", "tests.llama_cpp_logits", str(path)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def importance(exact: Path) -> ImportanceMatrix:
    """Return the importance matrix that `chaski imatrix` makes of the documentation's text."""
    path = exact.with_name("importance.gguf")
    command = [sys.executable, "-m", "chaski", "imatrix", str(exact), str(TEXT), "--out", str(path)]
    subprocess.run(command, capture_output=True, check=True)
    return read_importance(path)


@contextmanager
def loaded(path: Path, kv_type: str | None = None) -> Iterator[chaski.LLM]:
    with chaski.load(path, context=CONTEXT, kv_type=kv_type, prompt_cache=False, threads=2) as model:
        yield model


def greedy(model: chaski.LLM) -> list[tuple[list[int], list[int]]]:
    """Return the prompts with their answers; an answer ends early if the model ends it."""
    prompts = [model.tokenize(prompt) for prompt in PROMPTS]
    answers = [model.generate(prompt, temperature=0, num_predict=COUNT) for prompt in prompts]
    return [(prompt, list(answer.token_ids)) for prompt, answer in zip(prompts, answers, strict=True)]


def test_greedy_tokens_of_unrounded_weights(exact: Path) -> None:
    """Each of our tokens is the most likely one for llama.cpp too, so both write the same answers."""
    with loaded(exact, "f32") as model:
        pairs = greedy(model)
    assert sum(len(answer) for _, answer in pairs) > 0.8 * COUNT * len(PROMPTS)
    assert llama_cpp(exact, answers=pairs) == [answer for _, answer in pairs]


def test_greedy_tokens_differ_only_where_two_are_nearly_as_likely(model: Path, exact: Path) -> None:
    with loaded(model) as quantized:
        pairs = greedy(quantized)
    theirs = llama_cpp(model, answers=pairs)
    gaps = []
    with loaded(exact, "f32") as reference:
        for (prompt, own), other in zip(pairs, theirs, strict=True):
            rows = reference.logits([*prompt, *own[:-1]])[len(prompt) - 1 :]
            places = [place for place in range(len(own)) if own[place] != other[place]]
            gaps += [
                rows[place].max() - min(rows[place][own[place]], rows[place][other[place]])
                for place in places
            ]
    num_tokens = sum(len(answer) for _, answer in pairs)
    print(f"{len(gaps)} of {num_tokens} tokens differ, {max(gaps, default=0):.3f} apart at most")
    assert max(gaps, default=0) < NEAR
    assert len(gaps) < 0.1 * num_tokens


@contextmanager
def exactly(path: Path) -> Iterator[chaski.LLM]:
    """Load the weights of a file as F32, so that no activation is rounded."""
    exact = path.with_name("dequantized.gguf")
    write_exact(path, exact)
    with loaded(exact, "f32") as model:
        yield model
    exact.unlink()


def distances(logits: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each sequence's errors, apart from a common one of each token.

    logits: (sequences, tokens, vocabulary)
    """
    errors = logits.astype(np.float64) - wanted
    found: np.ndarray = (errors - errors.mean(axis=2, keepdims=True)).std(axis=(1, 2))
    return found


@pytest.fixture
def typed(model: Path, exact: Path, importance: ImportanceMatrix, type: str, tmp_path: Path) -> Path:
    """Return the model's file, quantized to a type."""
    if type in BY_IMPORTANCE:
        return write_by_importance(exact, tmp_path / "model.gguf", type, importance)
    return model if type == "as published" else write_mixture(exact, tmp_path, type)


@pytest.mark.parametrize("type", ["as published", *TYPES])
def test_logits_are_no_further_from_exact_than_those_of_llama_cpp(typed: Path, tmp_path: Path) -> None:
    """Exact logits are those of the same dequantized weights without any rounding of activations.

    This holds also for types with which a model predicts nothing: a wrong product moves the logits as far as
    those of other tokens are. All later tokens attend to the first ones of a sequence, whose rounding thus
    moves all its logits. So a sequence is one sample: the ratio of the two distances varies by about 10 % to
    25 % between sequences, and its mean has a standard error.
    """
    with loaded(typed) as found:
        ids = Chunks.of(TEXT.read_text(), found.tokenizer, CONTEXT).token_ids
        begins = np.linspace(1, len(ids) - SEQUENCE_LENGTH, NUM_SEQUENCES).astype(int)
        sequences = [list(ids[begin : begin + SEQUENCE_LENGTH]) for begin in begins]
        ours = np.stack([found.logits(each) for each in sequences])
    with exactly(typed) as reference:
        wanted = np.stack([reference.logits(each) for each in sequences])
    llama_cpp(typed, logits=sequences, file=str(tmp_path / "logits.npy"))
    own, other = distances(ours, wanted), distances(np.load(tmp_path / "logits.npy"), wanted)
    ratios = np.log(own / other)
    error = float(ratios.std(ddof=1)) / NUM_SEQUENCES**0.5
    print(f"distances {own.mean():.5f}, {other.mean():.5f}, of logits {wanted.std():.3f}: ", end="")
    print(f"{np.expm1(ratios.mean()):+.1%} ± {error:.1%}")
    assert ratios.mean() < np.log(1.02) + 2 * error
    assert own.mean() < 0.5 * wanted.std()


@pytest.mark.parametrize("type", ["as published", *(type for type in TYPES if type not in UNPREDICTING)])
def test_each_type_predicts_as_in_llama_cpp(typed: Path, type: str) -> None:
    """Perplexities are equal within 0.5 %, and our top tokens are nearly the likeliest in exact arithmetic.

    The rounding of activations is noise, so many tokens are needed: on 8,940 of them, the ratio of
    perplexities has a standard error of about 0.1 % (SmolLM2) or 0.14 % (Gemma 3).
    """
    ours, theirs, unlike, gaps = [], [], [], []
    with loaded(typed) as found, exactly(typed) as reference:
        chunks = Chunks.of("\n".join(text.read_text() for text in TEXTS), found.tokenizer, CONTEXT)
        pieces = [chunks[index] for index in range(NUM_CHUNKS)]
        replies = llama_cpp(typed, scored=pieces, first=UNSCORED, top=True)
        for ids, (scores, tokens) in zip(pieces, replies, strict=True):
            rows = found.logits(ids[:-1])[UNSCORED - 1 :]
            wanted = reference.logits(ids[:-1])[UNSCORED - 1 :]
            ours.append(surprisals(rows, ids[UNSCORED:]))
            theirs.append(scores)
            own = rows.argmax(axis=1)
            gaps.append(wanted.max(axis=1) - wanted[np.arange(len(wanted)), own])
            unlike.append(own != np.array(tokens))
    differences, gap = np.array(ours) - np.array(theirs), np.array(gaps)
    error = float(differences.std()) / differences.size**0.5
    print(f"{type}: perplexity {np.exp(np.mean(ours)):.3f}, {np.exp(np.mean(theirs)):.3f}: ", end="")
    print(f"{np.expm1(differences.mean()):+.3%} ± {error:.3%}; ", end="")
    print(f"{np.mean(unlike):.1%} of the top tokens differ, {gap.max():.3f} from exact at most")
    assert np.exp(differences.mean()) == pytest.approx(1, abs=0.005)
    assert gap.max() < (NEAR_UNROUNDED if type in ("F16", "BF16") else 2 * NEAR)
    assert np.mean(unlike) < 0.1
