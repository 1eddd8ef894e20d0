"""A draft model changes when tokens arrive, but never the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import OptionError, OutOfMemoryError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.quant import QuantType
from chaski.kvcache.batch import Batch
from chaski.model.program import Program
from chaski.model.proposing import ProposingCost
from chaski.runner.speculation.draft_model import DraftModel
from tests.backends import BACKENDS, about_the_processor
from tests.tiny_llama import BOS, CONTEXT, write_tiny_llama

DATA = Path(__file__).parents[2] / "data"
GUIDE = Path(chaski.__file__).parent / "models" / "guide.gguf"
PROMPT = "the other and an inner thing "
LONG = {"temperature": 0, "num_predict": 2 * CONTEXT}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a target, and drafts that are equal, similar, different, or lack some tokens."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "guide.gguf").symlink_to(GUIDE)
    write_tiny_llama(folder / "target.gguf", memory=0.3)
    write_tiny_llama(folder / "near.gguf", memory=0.3, matrices=QuantType.Q4_0)
    write_tiny_llama(folder / "far.gguf", memory=0.9)
    with open_gguf(folder / "target.gguf") as file:
        tokens = file.get("tokenizer.ggml.tokens", list[str])[:]
    for name, count in (("short", BOS + 1), ("letters", 100)):
        path = folder / f"{name}.gguf"
        write_tiny_llama(path, memory=0.3, tokenizer__ggml__tokens=tokens[:count])
    return folder


@pytest.fixture(scope="module", autouse=True)
def cheap() -> Iterator[None]:
    """Let drafts propose as if they were small; they are as large as their target."""
    with pytest.MonkeyPatch.context() as patched:
        cost = property(lambda self: ProposingCost(token=0.1), lambda self, value: None)
        patched.setattr(DraftModel, "cost", cost, raising=False)
        yield


@pytest.fixture(scope="module", params=["target", "near", "far", "short"])
def model(request: pytest.FixtureRequest, folder: Path) -> Iterator[chaski.LLM]:
    draft = folder / f"{request.param}.gguf"
    with chaski.load(folder / "target.gguf", draft=draft, parallel=4, context=CONTEXT) as model:
        yield model


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0.5, "seed": 5},
        {"temperature": 1.0, "seed": 5, "top_k": 0, "min_p": 0.02},
        {"temperature": 0, "num_predict": 61, "logprobs": True, "top_logprobs": 2},
        {"temperature": 0, "stop": ["e", "th"]},
        {"temperature": 0.3, "seed": 1, "repeat_penalty": 1.3},
        LONG,
        {**LONG, "shift": False},
        {**LONG, "num_keep": 50},
    ],
)
def test_the_answer_is_the_same(model: chaski.LLM, options: dict[str, Any]) -> None:
    settings = {"num_predict": 100, **options}
    plain = model.generate(PROMPT, draft_num_predict=0, **settings)
    drafted = model.generate(PROMPT, **settings)
    assert drafted.text == plain.text
    assert drafted.token_ids == plain.token_ids
    assert drafted.logprobs == plain.logprobs
    assert drafted.done_reason == plain.done_reason
    assert drafted.done.shifted_tokens == plain.done.shifted_tokens
    assert drafted.done.proposed_tokens > 0 or "stop" in options
    assert plain.done.proposed_tokens == 0


def test_a_model_accepts_its_own_proposals(folder: Path) -> None:
    path = folder / "target.gguf"
    for threads in (1, 2):
        with chaski.load(path, draft=path, threads=threads) as model:
            done = model.generate(PROMPT, temperature=0, num_predict=100).done
        assert done.accepted_tokens == done.proposed_tokens >= 80


def test_a_like_model_proposes_better(folder: Path) -> None:
    shares = []
    for name in ("near", "far"):
        with chaski.load(folder / "target.gguf", draft=folder / f"{name}.gguf") as model:
            done = model.generate(PROMPT, temperature=0, num_predict=200).done
            shares.append(done.accepted_tokens / done.proposed_tokens)
    assert shares[0] > 1.5 * shares[1] > 0


def test_tokens_that_a_draft_lacks_are_not_proposed_from(folder: Path) -> None:
    """The prompt begins with one."""
    with chaski.load(folder / "target.gguf", draft=folder / "letters.gguf") as model:
        options: dict[str, Any] = {"temperature": 0, "num_predict": 50}
        plain = model.generate(PROMPT, draft_num_predict=0, **options)
        drafted = model.generate(PROMPT, **options)
        assert (drafted.token_ids, drafted.done.proposed_tokens) == (plain.token_ids, 0)


def test_answers_beside_each_other_are_those_alone(model: chaski.LLM) -> None:
    prompts = [PROMPT * count for count in (1, 3, 2, 5, 4, 1)]
    options: list[dict[str, Any]] = [{"temperature": 0.4, "seed": seed} for seed in range(5)]
    options += [{"temperature": 0, "draft_num_predict": 0}]

    def answer(index: int) -> tuple[int, ...]:
        return model.generate(prompts[index], num_predict=80, **options[index]).token_ids

    alone = [answer(index) for index in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(answer, range(6))) == alone


def test_what_was_drafted_for_one_cache_salt_is_not_used_for_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    prepare = Program.prepare

    def prepared(program: Program, batch: Batch) -> Any:
        lengths.append(len(batch.tokens))
        return prepare(program, batch)

    path = folder / "target.gguf"
    with chaski.load(path, draft=path) as model:
        monkeypatch.setattr(Program, "prepare", prepared)
        computed = []
        for salt in ("a", "a", "b"):
            lengths.clear()
            model.generate(PROMPT, temperature=0, num_predict=4, cache_salt=salt)
            computed.append(sum(length > 8 for length in lengths))
    # Long batches: both models compute the prompt, neither does, both do.
    assert computed == [2, 0, 2]


def test_an_answer_whose_reader_left_spoils_nothing(model: chaski.LLM) -> None:
    expected = model.generate(PROMPT, temperature=0, num_predict=60, draft_num_predict=0).token_ids
    for pieces in (1, 3, 10):
        stream = model.stream(PROMPT, temperature=0, num_predict=60)
        for _ in range(pieces):
            next(stream)
        stream.close()
        assert model.generate(PROMPT, temperature=0, num_predict=60).token_ids == expected


def test_a_failure_while_it_proposes_is_survived(model: chaski.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model.generate(PROMPT, temperature=0, num_predict=60, draft_num_predict=0).token_ids

    def interrupted(*lists: list[int]) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("chaski.runner.speculation.draft_model.common_prefix", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPT, temperature=0, num_predict=60)
    assert model.generate(PROMPT, temperature=0, num_predict=60).token_ids == expected


def test_formats_are_followed_without_proposals(model: chaski.LLM) -> None:
    answer = model.generate(PROMPT, temperature=0, num_predict=20, format="json")
    assert answer.done.proposed_tokens == 0


@about_the_processor
def test_its_memory_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "target.gguf"
    with chaski.load(path) as alone, chaski.load(path, draft=path) as both:
        assert both.memory().total == 2 * alone.memory().total
        room = alone.memory().total * 3 // 2
    monkeypatch.setattr("chaski.ml.cpu.backend.available_memory", lambda: room)
    chaski.load(path).close()
    with pytest.raises(OutOfMemoryError, match=r"0\.00\d GB  draft model"):
        chaski.load(path, draft=path)


def test_a_worker_drafts_too(folder: Path) -> None:
    path = folder / "target.gguf"
    with chaski.Worker(path, draft=str(path)) as worker:
        done = worker.generate(PROMPT, temperature=0, num_predict=20).done
    assert done.accepted_tokens == done.proposed_tokens > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_reference_backend_drafts_too(folder: Path, backend: str) -> None:
    path = folder / "target.gguf"
    with chaski.load(path, draft=path, backend=backend, threads=1) as model:
        done = model.generate(PROMPT, temperature=0, num_predict=12).done
    assert done.proposed_tokens >= 8


@pytest.mark.parametrize(
    ("target", "draft", "error", "message"),
    [
        (
            "target.gguf",
            "guide.gguf",
            OptionError,
            r"guide\.gguf cannot be the draft of target\.gguf: token 0 is .*; a draft needs the same",
        ),
        ("target.gguf", "embedders/nomic-bert.gguf", UnsupportedError, "nomic-bert.gguf makes embeddings"),
    ],
)
def test_what_cannot_be_a_draft(
    folder: Path, target: str, draft: str, error: type[Exception], message: str
) -> None:
    paths = [DATA / name if "/" in name else folder / name for name in (target, draft)]
    with pytest.raises(error, match=message):
        chaski.load(paths[0], draft=paths[1])
