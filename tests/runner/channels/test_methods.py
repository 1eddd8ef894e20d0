"""Every method of a model gives the same result in this process, in a worker, and in an event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

import chaski
from chaski.errors import ContextLengthError, OptionError, SamplingError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.names import ModelName
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.channels.worker.client import Worker
from chaski.runner.methods import ModelMethods
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.tiny_llama import write_tiny_llama
from tests.tiny_ranker import write_tiny_ranker

PROMPTS = ["the end", "in the other", "hello", "the end of it"]
TALKS = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
DRAW: Any = {"temperature": 1.0, "num_predict": 12, "logprobs": True}
DOCUMENTS = ["the end", "in the other", "another", "hello there"]
WAYS = ["here", "worker", "loop", "worker in a loop"]


class Way:
    """Calls a model's methods, and awaits asynchronous ones."""

    def __init__(self, model: chaski.LLM | Worker | AsyncModel) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            async def waiting() -> Any:
                found = getattr(self.model, name)(*arguments, **options)
                if inspect.isawaitable(found):
                    return await found
                return [event async for event in found] if hasattr(found, "__aiter__") else found

            return asyncio.run(asyncio.wait_for(waiting(), 60))

        return call


def opened(path: Path | str, way: str, **options: Any) -> Iterator[Way]:
    kind: Any = Worker if "worker" in way else chaski.load
    with kind(path, threads=1, **options) as model:
        yield Way(model.asynchronous() if "loop" in way else model)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model whose file names tokens for infilling."""
    names = {f"tokenizer__ggml__fim_{name}_token_id": 10 + i for i, name in enumerate(("pre", "suf", "mid"))}
    return write_tiny_llama(tmp_path_factory.mktemp("methods") / "tiny.gguf", **names)


@pytest.fixture(scope="module")
def here(file: Path) -> Iterator[chaski.LLM]:
    with chaski.load(file, threads=1, parallel=1, prompt_cache=False) as model:
        yield model


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, file: Path) -> Iterator[Way]:
    yield from opened(file, request.param, parallel=3)


@pytest.fixture(scope="module", params=WAYS)
def ranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    yield from opened(write_tiny_ranker(tmp_path_factory.mktemp("rank") / "r.gguf"), request.param)


def content(answer: chaski.Answer) -> tuple[object, ...]:
    return answer.text, answer.token_ids, answer.logprobs, answer.done_reason, answer.prompt_tokens


def contents(answers: list[chaski.Answer]) -> list[tuple[object, ...]]:
    return [content(answer) for answer in answers]


@pytest.mark.parametrize("kind", [chaski.LLM, Worker, AsyncModel])
def test_methods_are_declared_once(kind: type) -> None:
    public = {name for name in vars(ModelMethods) if not name.startswith("_")}
    assert public >= {"generate", "stream", "chat", "stream_chat", "generate_many", "chat_many"}
    assert public >= {"embed", "score", "rerank", "tokenize", "detokenize"}
    assert all(getattr(kind, name) is getattr(ModelMethods, name) for name in public)


def test_lists_of_prompts(way: Way, here: chaski.LLM) -> None:
    alone = [here.generate(prompt, seed=seed, **DRAW) for prompt in PROMPTS for seed in (7, 8, 9)]
    shares: list[float] = []
    together = way.generate_many(PROMPTS, n=3, seed=7, progress=shares.append, **DRAW)
    assert contents(together) == contents(alone)
    assert shares == [pytest.approx(number / 12) for number in range(1, 13)]
    ids = [here.tokenize(prompt) for prompt in PROMPTS]
    assert contents(way.generate_many(ids, seed=7, **DRAW)) == contents(alone[::3])
    assert way.generate_many([]) == []
    assert len({each.text for each in way.generate_many(["the"], n=4, **DRAW)}) > 1, "without a seed"


def test_lists_of_conversations(way: Way, here: chaski.LLM) -> None:
    alone = [here.chat(talk, seed=seed, **DRAW) for talk in TALKS for seed in (1, 2)]
    assert contents(way.chat_many(TALKS, n=2, seed=1, **DRAW)) == contents(alone)


@pytest.mark.parametrize("kind", WAYS)
def test_the_seed_of_a_stored_model_counts_up(tmp_path: Path, kind: str, file: Path) -> None:
    parameters = {"seed": 40, "temperature": 1.0, "num_predict": 8}
    for _ in create(
        Store(tmp_path), ModelName.parse("seeded"), Recipe(sources=[file], parameters=parameters)
    ):
        pass
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_MODELS", str(tmp_path))
        for way in opened("seeded", kind):
            found = way.generate_many(["the"], n=3)
            assert contents(found) == contents([way.generate("the", seed=seed) for seed in (40, 41, 42)])


def test_a_suffix(way: Way, here: chaski.LLM, file: Path) -> None:
    assert "insert" in here.capabilities
    before, behind, between = open_gguf(file).get("tokenizer.ggml.tokens", list[str])[10:13]
    alone = [here.generate(f"{before}{text}{behind}end{between}", seed=3, **DRAW) for text in PROMPTS]
    assert content(way.generate(PROMPTS[0], suffix="end", seed=3, **DRAW)) == content(alone[0])
    events = way.stream(PROMPTS[0], suffix="end", seed=3, **DRAW)
    assert "".join(event.text for event in events if isinstance(event, chaski.Text)) == alone[0].text
    assert contents(way.generate_many(PROMPTS, suffix="end", seed=3, **DRAW)) == contents(alone)
    other = way.generate_many(PROMPTS, suffix=["end", "", "end", "end"], seed=3, **DRAW)
    plain = here.generate(PROMPTS[1], seed=3, **DRAW)
    assert contents(other) == contents([alone[0], plain, *alone[2:]])


def test_suffixes_that_are_refused(way: Way) -> None:
    for suffix in (None, 3, b"end", ["end"]):
        with pytest.raises(OptionError, match=r"the suffix is .*; it must be a text"):
            way.generate("a", suffix=suffix)
    with pytest.raises(OptionError, match="before a suffix it must be a text"):
        way.generate([1, 2], suffix="end")
    with pytest.raises(OptionError, match="there are 1 suffixes and 4 prompts"):
        way.generate_many(PROMPTS, suffix=["end"])


@pytest.mark.parametrize("kind", WAYS)
def test_a_model_that_cannot_fill_in(tiny_llama: Path, kind: str) -> None:
    for way in opened(tiny_llama, kind):
        with pytest.raises(UnsupportedError, match="neither its template nor its file says how to fill in"):
            way.generate("a", suffix="end")
        assert way.generate("a", suffix="", num_predict=2).text
    with chaski.load(tiny_llama, threads=1) as model:
        assert "insert" not in model.capabilities


def test_an_error_in_a_list_names_its_place(way: Way) -> None:
    with pytest.raises(ContextLengthError, match=r"^prompt 2: the prompt has \d+ tokens") as caught:
        way.generate_many(["a", "b", "c " * 500, "d"], n=2, num_predict=3)
    assert caught.value.limit == 256
    talks = [TALKS[0], [{"role": "user", "content": "a", "images": [b"GIF"]}]]
    with pytest.raises(UnsupportedError, match=r"^conversation 1: .*does not see images"):
        way.chat_many(talks, num_predict=3)
    with pytest.raises(OptionError, match=r"^option 'n_predict' is unknown"):
        way.generate_many(PROMPTS, n_predict=3)
    with pytest.raises(SamplingError, match=r"^option temperature"):
        way.generate_many(PROMPTS, temperature="warm")
    with pytest.raises(OptionError, match=r"option n is 0; it must be a whole number from 1 on"):
        way.chat_many(TALKS, n=0)
    assert way.generate("a", num_predict=2).text, "and the model goes on"


def test_scores_and_rankings(ranker: Way, tmp_path: Path) -> None:
    with chaski.load(write_tiny_ranker(tmp_path / "r.gguf"), threads=1) as here:
        scores = here.score("the other end", DOCUMENTS)
        best = here.rerank("the other end", DOCUMENTS, top_n=2)
    assert (ranker.score("the other end", DOCUMENTS) == scores).all()
    assert scores.shape == (len(DOCUMENTS),)
    assert ranker.rerank("the other end", DOCUMENTS, top_n=2) == best
    assert [each.score for each in best] == sorted(scores.tolist(), reverse=True)[:2]
    assert len(ranker.rerank("the other end", DOCUMENTS)) == len(DOCUMENTS)
    for wrong, message in (
        ({"query": 3}, "the query is 3"),
        ({"documents": "one"}, "the documents are 'one'"),
        ({"documents": []}, "at least one"),
        ({"top_n": -1}, "option top_n is -1"),
        ({"top_n": "2"}, "option top_n is '2'"),
    ):
        with pytest.raises(OptionError, match=message):
            ranker.rerank(**{"query": "a", "documents": DOCUMENTS} | wrong)


def test_a_model_that_does_not_rank(way: Way) -> None:
    with pytest.raises(UnsupportedError, match="does not rank"):
        way.score("a", DOCUMENTS)
    with pytest.raises(OptionError, match="the text is 'a text'; it must be given as a list of token ids"):
        way.detokenize("a text")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["loop", "worker in a loop"])
def test_a_cancelled_list_frees_its_slots(file: Path, kind: str, endless: dict[str, Any]) -> None:
    options = {name: value for name, value in endless.items() if name != "prompt"}

    async def cancel(model: AsyncModel) -> float:
        many = asyncio.create_task(model.generate_many(["0"] * 6, **options))
        await asyncio.sleep(0.3)
        assert not many.done()
        many.cancel()
        with pytest.raises(asyncio.CancelledError):
            await many
        started = perf_counter()
        await model.generate("hello", num_predict=1)
        return perf_counter() - started

    for way in opened(file, kind, parallel=2):
        assert min(asyncio.run(cancel(way.model)) for _ in range(3)) < 1


@pytest.mark.long
@pytest.mark.parametrize("kind", WAYS)
def test_an_error_in_a_list_frees_its_slots(file: Path, kind: str, endless: dict[str, Any]) -> None:
    """Endless answers end together with the refused one."""
    options = {name: value for name, value in endless.items() if name != "prompt"}
    for way in opened(file, kind, parallel=2):
        with pytest.raises(ContextLengthError, match=r"^prompt 1: "):
            way.generate_many(["0", "c " * 500, "0"], **options)
        assert way.generate("hello", num_predict=1).token_ids
