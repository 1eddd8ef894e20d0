"""LangChain's package for Ollama against a real server. Run by hand: `pip install langchain-ollama`.

Covered: ChatOllama (invoke, ainvoke, stream, astream, batch, bind_tools, results of tools, reasoning,
logprobs, with_structured_output by schema, by JSON and by calls, stop, metadata of usage,
validate_model_on_init), OllamaLLM (invoke, stream), OllamaEmbeddings (embed_documents, embed_query).
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pydantic
import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.server.test_tools_and_thinking import ASKED, THOUGHT
from tests.server.test_tools_and_thinking import server as speaking
from tests.server.thinker import fake, fresh, script
from tests.tiny_llama import write_tiny_llama

langchain = pytest.importorskip("langchain_ollama")
messages = pytest.importorskip("langchain_core.messages")

pytestmark = [
    pytest.mark.oracle,
    # Its clients cannot be closed.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

__all__ = ["fake", "fresh", "script", "speaking"]

QUESTION = "how do I use fewer cores?"
ANSWER = "Use `--threads"
CALL = '<tool_call>{"name": "Weather", "arguments": {"city": "Cusco"}}</tool_call>'


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Collect its clients here, so that their warnings do not appear in the next test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def chat_of(server: Running, model: str = "guide", **options: Any) -> Any:
    return langchain.ChatOllama(model=model, base_url=server.url, temperature=0, num_predict=16, **options)


# ---- with the bundled model ----


def test_whole_streamed_and_many(server: Running) -> None:
    chat = chat_of(server, validate_model_on_init=False)
    whole = chat.invoke(QUESTION)
    assert whole.content.startswith(ANSWER)
    assert whole.response_metadata["done_reason"] == "length"
    assert whole.usage_metadata["output_tokens"] == 16
    chunks = list(chat.stream([("system", "Be kind."), ("human", QUESTION)]))
    assert len(chunks) > 5
    again = [chunk.content for chunk in chat.stream(QUESTION)]
    assert "".join(again) == whole.content
    assert [each.content for each in chat.batch([QUESTION] * 3)] == [whole.content] * 3


def test_from_an_event_loop(server: Running) -> None:
    async def ask() -> tuple[str, str]:
        chat = chat_of(server)
        whole = await chat.ainvoke(QUESTION)
        return whole.content, "".join([chunk.content async for chunk in chat.astream(QUESTION)])

    whole, streamed = asyncio.run(ask())
    assert whole == streamed
    assert whole.startswith(ANSWER)


def test_options(server: Running) -> None:
    assert chat_of(server, stop=["--"]).invoke(QUESTION).content == "Use `"
    assert chat_of(server, num_ctx=256, seed=3, top_k=5).invoke(QUESTION).content.startswith(ANSWER)
    scored = chat_of(server, logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert len(scored.response_metadata["logprobs"]) == 16
    assert chat_of(server, "helper", validate_model_on_init=True).invoke(QUESTION).content.startswith(ANSWER)
    with pytest.raises(ValueError, match="nobody"):
        chat_of(server, "nobody", validate_model_on_init=True)


def test_structured_output(server: Running) -> None:
    class Cores(pydantic.BaseModel, extra="forbid"):
        cores: Literal[2]

    structured = chat_of(server).with_structured_output(Cores, method="json_schema")
    assert structured.invoke(QUESTION) == Cores(cores=2)
    as_json = langchain.ChatOllama(model="guide", base_url=server.url, temperature=0, num_predict=200)
    found = as_json.with_structured_output(Cores.model_json_schema(), method="json_schema").invoke(QUESTION)
    assert found == {"cores": 2}


def test_completion(server: Running) -> None:
    model = langchain.OllamaLLM(model="guide", base_url=server.url, temperature=0, num_predict=16)
    whole = model.invoke(QUESTION)
    assert whole.startswith(ANSWER)
    assert "".join(model.stream(QUESTION)) == whole


def test_a_real_model_thinks_calls_and_answers(speaking: Running) -> None:
    def weather(city: Literal["Cusco"]) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    chat = chat_of(speaking, "speaker", reasoning=True).bind_tools([weather])
    chat.bound.num_predict = 60
    answer = chat.invoke(ASKED)
    assert answer.additional_kwargs["reasoning_content"] == THOUGHT
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Cusco"})
    result = messages.ToolMessage(weather(**call["args"]), tool_call_id=call["id"])
    assert chat.invoke([messages.HumanMessage(ASKED), answer, result]).content == "It is fine."


# ---- with a model that says what the test needs ----


def test_tools_and_their_results(fake: Running, script: Script) -> None:
    script.pieces = ("<think>hm</think>Wait. ", CALL)
    chat = chat_of(fake, "thinker", reasoning=True).bind_tools([Weather])
    answer = chat.invoke(QUESTION)
    assert answer.additional_kwargs["reasoning_content"] == "hm"
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("Weather", {"city": "Cusco"})
    streamed = None
    for chunk in chat.stream(QUESTION):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.tool_calls[0]["args"] == {"city": "Cusco"}
    result = messages.ToolMessage("sunny", tool_call_id=call["id"])
    script.pieces = ("fine",)
    assert chat.invoke([messages.HumanMessage(QUESTION), answer, result]).content == "fine"
    prompt = bytes(script.asked[-1].prompt).decode()
    assert '{"city": "Cusco"}[tool]sunny[assistant]' in prompt


def test_structure_by_a_call_and_by_json(fake: Running, script: Script) -> None:
    script.pieces = (CALL,)
    chat = chat_of(fake, "thinker")
    assert chat.with_structured_output(Weather, method="function_calling").invoke("x") == Weather(
        city="Cusco"
    )
    script.pieces = ('{"city": "Lima"}',)
    assert chat.with_structured_output(Weather, method="json_mode").invoke("x") == Weather(city="Lima")


# ---- vectors ----


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("langchain-vectors")
    file = write_tiny_llama(folder / "vectors.gguf", llama__pooling_type=1)
    for _ in create(Store(folder), ModelName.parse("vectors"), Recipe(sources=[file])):
        pass
    with running(Settings(address=SOMEWHERE), folder) as server:
        yield server


def test_embeddings(vectors: Running) -> None:
    model = langchain.OllamaEmbeddings(model="vectors", base_url=vectors.url)
    rows = model.embed_documents(["the other end", "in the"])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    assert model.embed_query("in the") == rows[1]
