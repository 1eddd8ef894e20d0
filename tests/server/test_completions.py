"""/v1/completions beyond one text: several prompts, tokens, echo, scores, best of several answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import chaski
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running

TEXTS = ["Llamas carry", "how do I use fewer cores?"]
ASKED: dict[str, Any] = {"model": "guide", "temperature": 0, "max_tokens": 5}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def guide() -> Iterator[chaski.LLM]:
    with chaski.load("guide", threads=1, parallel=2) as found:
        yield found


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def fake(tmp_path: Path, script: Script) -> Iterator[Running]:
    with running(Settings(address=SOMEWHERE), tmp_path, script.open) as found:
        yield found


def tokens_of(server: Running, text: str) -> list[int]:
    found: list[int] = server.post("/api/tokenize", {"model": "guide", "content": text}).json["tokens"]
    return found


def test_several_prompts_are_answered_as_each_alone(client: openai.OpenAI, server: Running) -> None:
    alone = [client.completions.create(prompt=text, **ASKED).choices[0].text for text in TEXTS]
    together = client.completions.create(prompt=TEXTS, **ASKED)
    assert [(choice.index, choice.text) for choice in together.choices] == list(enumerate(alone))
    assert together.usage is not None
    lengths = [client.completions.create(prompt=text, **ASKED).usage for text in TEXTS]
    assert together.usage.prompt_tokens == sum(usage.prompt_tokens for usage in lengths if usage)
    streamed: dict[int, str] = {}
    for chunk in client.completions.create(prompt=TEXTS, stream=True, **ASKED):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + choice.text
    assert [streamed[index] for index in range(2)] == alone


def test_tokens_are_the_prompt_as_they_are(client: openai.OpenAI, server: Running) -> None:
    raw = client.completions.create(prompt=TEXTS[0], extra_body={"raw": True}, **ASKED).choices[0].text
    ids = [tokens_of(server, text) for text in TEXTS]
    one = client.completions.create(prompt=ids[0], **ASKED)
    both = client.completions.create(prompt=ids, n=2, **ASKED)
    assert one.choices[0].text == raw
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in both.choices[:2]] == [raw, raw]
    wrong = server.post("/v1/completions", ASKED | {"prompt": [[10**6]]})
    assert (wrong.status, "is not in the model's vocabulary" in wrong.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_what_harnesses_for_evaluation_do(
    client: openai.OpenAI, server: Running, guide: chaski.LLM, max_tokens: int
) -> None:
    """Prompts of tokens are returned with log-probabilities; those after `context` are summed."""
    rows = [tokens_of(server, f"{text} wool, and answers") for text in TEXTS]
    asked: dict[str, Any] = {"echo": True, "max_tokens": max_tokens, "logprobs": 1, "seed": 1234}
    reply = client.completions.create(model="guide", prompt=rows, temperature=0, **asked)
    assert [choice.index for choice in reply.choices] == [0, 1]
    for ids, choice in zip(rows, reply.choices, strict=True):
        scores = choice.logprobs
        assert scores is not None
        assert scores.token_logprobs is not None
        assert scores.top_logprobs is not None
        expected = guide.generate(ids, num_predict=0, prompt_logprobs=1).prompt_logprobs
        assert scores.token_logprobs[: len(ids)] == [None, *(each.logprob for each in expected)]
        assert len(scores.token_logprobs) == len(scores.top_logprobs) == len(ids) + max_tokens
        best = [each.top_logprobs[0].logprob for each in expected if each.top_logprobs]
        assert [max(top.values()) for top in scores.top_logprobs[1 : len(ids)]] == best
        assert choice.text.startswith(guide.detokenize(ids))
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == sum(map(len, rows))
    assert reply.usage.prompt_tokens_details is None or not reply.usage.prompt_tokens_details.cached_tokens


def test_an_echo_of_text(client: openai.OpenAI, server: Running) -> None:
    asked: dict[str, Any] = {**ASKED, "prompt": TEXTS[0], "echo": True}
    plain = client.completions.create(prompt=TEXTS[0], extra_body={"raw": True}, **ASKED).choices[0].text
    assert client.completions.create(**asked).choices[0].text == TEXTS[0] + plain
    scored = client.completions.create(logprobs=0, **asked).choices[0]
    assert scored.logprobs is not None
    assert scored.logprobs.text_offset is not None
    assert scored.logprobs.tokens is not None
    assert scored.text == TEXTS[0] + plain
    for token, offset in list(zip(scored.logprobs.tokens, scored.logprobs.text_offset, strict=True))[1:]:
        assert scored.text[offset : offset + len(token)] == token
    streamed = list(client.completions.create(logprobs=0, stream=True, **asked))
    choices = [choice for chunk in streamed for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == scored.text
    parts = [choice.logprobs for choice in choices if choice.logprobs is not None]
    assert [each for part in parts for each in part.token_logprobs or ()] == scored.logprobs.token_logprobs
    assert [each for part in parts for each in part.text_offset or ()] == scored.logprobs.text_offset


def test_scores_of_the_prompt_by_themselves(server: Running, guide: chaski.LLM) -> None:
    """They have vLLM's form: by token id, without a score for the first token."""
    ids = tokens_of(server, TEXTS[1])
    reply = server.post("/v1/completions", ASKED | {"prompt": ids, "prompt_logprobs": 2}).json
    first, *others = reply["choices"][0]["prompt_logprobs"]
    expected = guide.generate(ids, num_predict=0, prompt_logprobs=2).prompt_logprobs
    assert first is None
    assert reply["choices"][0]["logprobs"] is None
    for found, sampled, token in zip(others, expected, ids[1:], strict=True):
        assert found[str(token)]["logprob"] == sampled.logprob
        assert sampled.top_logprobs is not None
        for rank, top in enumerate(sampled.top_logprobs, start=1):
            assert (found[str(top.token_id)]["rank"], found[str(top.token_id)]["logprob"]) == (
                rank,
                top.logprob,
            )


def test_prompts_have_so_many_scores(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number, the product of prompts, tokens and `prompt_logprobs`, is limited."""
    ids = tokens_of(server, TEXTS[1])
    monkeypatch.setattr("chaski.server.answering.scores.MAX_SCORES", 3 * len(ids))
    body = ASKED | {"prompt": ids, "prompt_logprobs": 2}
    assert server.post("/v1/completions", body).status == 200
    for more in ({"prompt_logprobs": 3}, {"prompt": [ids, ids]}, {"prompt": [*ids, *ids]}):
        reply = server.post("/v1/completions", body | more)
        assert reply.status == 400
        assert f"at most {3 * len(ids)} are returned" in reply.body.decode()


@pytest.mark.parametrize("n", [1, 2])
def test_scores_of_a_conversation_in_the_form_of_vllm(server: Running, guide: chaski.LLM, n: int) -> None:
    """They are next to the choices, once for all of them, since the prompt is the same."""
    messages = [{"role": "user", "content": TEXTS[1]}]
    asked = {"model": "guide", "messages": messages, "max_tokens": 2, "temperature": 0, "n": n}
    reply = server.post("/v1/chat/completions", asked | {"prompt_logprobs": 2}).json
    first, *others = reply["prompt_logprobs"]
    expected = guide.chat(messages, num_predict=0, prompt_logprobs=2).prompt_logprobs
    assert first is None
    assert len(others) == reply["usage"]["prompt_tokens"] - 1
    assert len(reply["choices"]) == n
    assert all("prompt_logprobs" not in choice for choice in reply["choices"])
    for found, sampled in zip(others, expected, strict=True):
        assert found[str(sampled.token_id)]["logprob"] == sampled.logprob
        assert set(found[str(sampled.token_id)]) == {"logprob", "rank", "decoded_token"}
        ranks = [found[str(top.token_id)]["rank"] for top in sampled.top_logprobs or ()]
        assert ranks == [1, 2]
    plain = server.post("/v1/chat/completions", asked).json
    assert "prompt_logprobs" not in plain
    assert [each["message"] for each in plain["choices"]] == [each["message"] for each in reply["choices"]]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"prompt_logprobs": 21}, "must be between 0 and 20"),
        ({"prompt_logprobs": -1}, "must be between 0 and 20"),
        ({"prompt_logprobs": 0, "stream": True}, "a stream cannot return prompt_logprobs"),
    ],
)
def test_scores_of_conversations_that_are_refused(fake: Running, fields: dict[str, Any], text: str) -> None:
    asked = {"model": "guide", "messages": [{"role": "user", "content": "x"}]}
    reply = fake.post("/v1/chat/completions", asked | fields)
    assert reply.status == 400
    assert text in reply.json["error"]["message"]


def test_the_best_of_several_answers(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "guide", "prompt": TEXTS[1], "max_tokens": 6, "seed": 3}
    asked |= {"temperature": 4, "logprobs": 0}
    every = client.completions.create(n=4, **asked).choices

    def mean(choice: Any) -> float:
        scores = choice.logprobs.token_logprobs if choice.logprobs else []
        return sum(scores) / len(scores) if scores else float("-inf")

    ranked = sorted(every, key=mean, reverse=True)
    best = client.completions.create(n=2, best_of=4, **asked)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert len({choice.text for choice in every}) > 1
    assert best.usage is not None
    assert best.usage.completion_tokens > sum(len(choice.logprobs.tokens) for choice in best.choices)
    alone = client.completions.create(**{**asked, "seed": 3 + every.index(ranked[0])})
    assert alone.choices[0].text == ranked[0].text
    del asked["logprobs"]
    assert client.completions.create(best_of=2, **asked).choices[0].logprobs is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"prompt": []}, "prompt is required"),
        ({"prompt": ["x", ""]}, "prompt is required"),
        ({"prompt": ["x", 1]}, "prompt must be"),
        ({"prompt": [[1], "x"]}, "prompt must be"),
        ({"prompt": [True]}, "prompt must be"),
        ({"prompt": {"a": 1}}, "prompt must be"),
        ({"prompt": ["x"] * 257}, "there are 257 prompts"),
        ({"n": 2, "best_of": 1}, "best_of must be at least n and at most 16"),
        ({"best_of": 17}, "best_of must be at least n and at most 16"),
        ({"best_of": 2, "stream": True}, "a stream cannot choose the best"),
        ({"echo": True, "raw": False}, "leave out raw"),
        ({"echo": True, "suffix": "y"}, "suffix needs the model's template"),
        ({"prompt_logprobs": 21}, "must be between 0 and 20"),
        ({"prompt_logprobs": -1}, "must be between 0 and 20"),
    ],
)
def test_what_is_refused(fake: Running, fields: dict[str, Any], text: str) -> None:
    reply = fake.post("/v1/completions", {"model": "guide", "prompt": "x"} | fields)
    assert reply.status == 400
    assert text in reply.json["error"]["message"]


def test_many_prompts_wait_for_each_other(fake: Running) -> None:
    """It sends more than a client may run at once, and more than may wait for the model."""
    reply = fake.post("/v1/completions", {"model": "guide", "prompt": ["x"] * 200})
    assert [choice["index"] for choice in reply.json["choices"]] == list(range(200))


def test_an_empty_stream_still_says_who_is_silent(fake: Running, script: Script) -> None:
    script.pieces = ()
    messages = [{"role": "user", "content": "x"}]
    reply = fake.post("/v1/chat/completions", {"model": "guide", "messages": messages, "stream": True})
    deltas = [
        json.loads(line[6:])["choices"][0]["delta"]
        for line in reply.body.decode().split("\n\n")
        if line.startswith("data: {")
    ]
    assert deltas == [{"role": "assistant", "content": ""}, {}]


def test_answers_count_up_the_seed_of_their_model(server: Running) -> None:
    made = {"model": "seeded", "from": "guide", "parameters": {"seed": 7}}
    assert server.post("/api/create", made).lines[-1] == {"status": "success"}
    asked = {"prompt": "Llamas carry", "temperature": 3, "max_tokens": 8}

    def texts(**more: Any) -> list[str]:
        choices = server.post("/v1/completions", asked | more).json["choices"]
        return [choice["text"] for choice in choices]

    alone = [texts(model="guide", seed=seed) for seed in (7, 8, 9)]
    counted = texts(model="seeded", n=3)
    assert server.ask("DELETE", "/api/delete", b'{"model": "seeded"}').status == 200
    assert counted == [text for (text,) in alone]
    assert len({text for (text,) in alone}) > 1
