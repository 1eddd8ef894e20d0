"""Documents in the order of their relevance, by a real model made to distinguish yes from no."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama
from tests.tiny_ranker import LABELS, write_tiny_ranker

DOCUMENTS = ["the end", "in the other", "another {query}", "hello there", "an inner thing"]
ASKED: Any = {"model": "ranker", "query": "the other end", "documents": DOCUMENTS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server with `ranker`, `scorer` (one label), `silent` (no prompt format), `talker`, `encoder`."""
    folder = tmp_path_factory.mktemp("ranking")
    files = {
        "ranker": write_tiny_ranker(folder / "two.gguf"),
        "scorer": write_tiny_ranker(folder / "one.gguf", LABELS[:1]),
        "silent": write_tiny_ranker(folder / "silent.gguf", template="no place"),
        "talker": write_tiny_llama(folder / "talker.gguf"),
        "encoder": folder / "encoder.gguf",
    }
    convert(Path(__file__).parents[1] / "data" / "rankers" / "bert", files["encoder"], "F32")
    for name, file in files.items():
        for _ in create(Store(folder / "models"), ModelName.parse(name), Recipe(sources=[file])):
            pass
    patch = pytest.MonkeyPatch()
    patch.setenv("CHASKI_THREADS", "1")
    with running(Settings(address=SOMEWHERE, parallel=2), folder / "models") as found:
        yield found
    patch.undo()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Return the scores from the last outputs of the same model without labels."""
    path = write_tiny_llama(tmp_path_factory.mktemp("plain") / "plain.gguf", llama__pooling_type=3)
    texts = [f"<q>{ASKED['query']}<d>{document}<a>" for document in DOCUMENTS]
    with chaski.load(path) as model:
        rows = model.embed(texts, normalize=False) @ LABELS.T
    return np.exp(rows[:, 0]) / np.exp(rows).sum(axis=1)


def test_the_best_comes_first(server: Running, expected: np.ndarray) -> None:
    native, openai = (server.post(f"/{api}/rerank", ASKED).json for api in ("api", "v1"))
    assert native["results"] == openai["results"]
    scores = [each["relevance_score"] for each in native["results"]]
    assert scores == sorted(scores, reverse=True)
    assert [each["index"] for each in native["results"]] == list(np.argsort(-expected))
    np.testing.assert_allclose(scores, np.sort(expected)[::-1], rtol=1e-4)
    assert np.ptp(scores) > 0.01
    assert native["prompt_eval_count"] == openai["usage"]["prompt_tokens"] > 50
    assert openai["object"] == "list"


def test_the_same_in_the_process(server: Running, tmp_path: Path) -> None:
    served = server.post("/v1/rerank", ASKED).json["results"]
    with chaski.load(write_tiny_ranker(tmp_path / "two.gguf"), threads=1, parallel=2) as model:
        scores = model.score(ASKED["query"], DOCUMENTS)
        found = model.rerank(ASKED["query"], DOCUMENTS, top_n=3)
        assert [model.score(ASKED["query"], [each])[0] for each in DOCUMENTS] == scores.tolist(), "as alone"
        with pytest.raises(chaski.ContextLengthError, match="set truncate"):
            model.score("a", ["the " * 500])
        assert 0 < model.score("a", ["the " * 500], truncate=True)[0] < 1
        wrongs: list[Any] = ["the end", [], [1], None]
        for wrong in wrongs:
            with pytest.raises(chaski.OptionError, match="must be a list of texts"):
                model.rerank("a", wrong)
    assert scores.tolist() == [each["relevance_score"] for each in sorted(served, key=lambda x: x["index"])]
    assert [(each.index, each.score) for each in found] == [
        (each["index"], each["relevance_score"]) for each in served[:3]
    ]
    assert found[0].document == DOCUMENTS[found[0].index]
    with (
        chaski.load(write_tiny_llama(tmp_path / "talker.gguf"), threads=1) as model,
        pytest.raises(chaski.UnsupportedError, match="does not rank documents"),
    ):
        model.score("a", ["b"])


def test_only_some_and_with_their_texts(server: Running) -> None:
    objects = [{"text": document} for document in DOCUMENTS]
    whole = server.post("/v1/rerank", ASKED).json["results"]
    asked = ASKED | {"documents": objects, "top_n": 2, "return_documents": True}
    assert server.post("/v1/rerank", asked).json["results"] == [
        each | {"document": objects[each["index"]]} for each in whole[:2]
    ]


def test_a_cross_encoder(server: Running, tmp_path: Path) -> None:
    found = {
        each["index"]: each["relevance_score"]
        for each in server.post("/v1/rerank", ASKED | {"model": "encoder"}).json["results"]
    }
    path = tmp_path / "encoder.gguf"
    convert(Path(__file__).parents[1] / "data" / "rankers" / "bert", path, "F32")
    with chaski.load(path, threads=1) as model:
        assert model.score(ASKED["query"], DOCUMENTS).tolist() == [found[i] for i in range(len(DOCUMENTS))]


def test_routes_of_other_engines(server: Running) -> None:
    """It tests the routes of llama.cpp, vLLM, Cohere, and Hugging Face's embedding server."""
    usual = server.post("/v1/rerank", ASKED | {"return_documents": True}).json
    assert server.post("/rerank", ASKED | {"return_documents": True}).json == usual
    cohere = server.post("/v2/rerank", ASKED | {"top_n": 2}).json
    assert [each.keys() for each in cohere["results"]] == [{"index", "relevance_score"}] * 2
    assert cohere["results"][0]["index"] == usual["results"][0]["index"]
    assert cohere["id"]
    assert cohere["meta"]["api_version"] == {"version": "2"}
    asked = {"model": "ranker", "query": ASKED["query"], "texts": DOCUMENTS, "return_text": True}
    assert server.post("/rerank", asked).json == [
        {
            "index": each["index"],
            "score": each["relevance_score"],
            "text": DOCUMENTS[each["index"]],
        }
        for each in usual["results"]
    ]
    for path, wrong in (("/rerank", {"raw_scores": True}), ("/v2/rerank", {"max_tokens_per_doc": 9})):
        reply = server.post(path, (asked if path == "/rerank" else ASKED) | wrong)
        assert (reply.status, next(iter(wrong)) in reply.json["error"]["message"]) == (400, True)


def test_each_document_is_judged_for_itself(server: Running) -> None:
    together = {each["index"]: each for each in server.post("/api/rerank", ASKED).json["results"]}
    for index, document in enumerate(DOCUMENTS):
        alone = server.post("/api/rerank", ASKED | {"documents": [document]}).json["results"]
        assert alone[0]["relevance_score"] == together[index]["relevance_score"]


def test_long_documents_are_cut_at_their_end(server: Running) -> None:
    """The model still sees the question after them."""
    long = [f"{DOCUMENTS[0]} {'x ' * count}" for count in (300, 400)]
    reply = server.post("/api/rerank", ASKED | {"documents": long}).json
    first, second = (each["relevance_score"] for each in reply["results"])
    assert first == second
    assert reply["prompt_eval_count"] == 2 * 256
    refused = server.post("/api/rerank", ASKED | {"documents": long, "truncate": False})
    assert refused.status == 400
    assert refused.error.startswith("the input length exceeds the context length: the prompt has ")
    assert server.post("/api/rerank", ASKED | {"query": "x " * 400}).status == 400


def test_a_single_label(server: Running) -> None:
    reply = server.post("/api/rerank", ASKED | {"model": "scorer"}).json
    assert all(0 < each["relevance_score"] < 1 for each in reply["results"])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"query": None}, "query is required"),
        ({"documents": []}, "documents is required"),
        ({"documents": [7]}, "documents[0] must be an object"),
        ({"documents": "text"}, "documents must be a list"),
        ({"top_n": 0}, "top_n is 0"),
        ({"model": "talker"}, "talker:latest does not support rerank"),
        ({"model": "silent"}, "does not say how it is asked"),
    ],
)
def test_what_cannot_be_is_refused(server: Running, fields: dict[str, Any], text: str) -> None:
    reply = server.post("/api/rerank", ASKED | fields)
    assert reply.status == 400
    assert text in reply.error


def test_such_a_model_does_nothing_else(server: Running) -> None:
    assert server.post("/api/show", {"model": "ranker"}).json["capabilities"] == ["rerank"]
    asked = {"model": "ranker", "prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}]}
    for path in ("generate", "chat", "embed"):
        reply = server.post(f"/api/{path}", asked)
        assert reply.status == 400
        assert "does not support" in reply.error
