"""Beam search in the server: vLLM's fields of OpenAI's routes, and options of the native ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import chaski
from tests.server.running import Running

TEXT = "Llamas carry"
COMPLETION: dict[str, Any] = {"model": "guide", "prompt": TEXT, "raw": True, "max_tokens": 5}
CHAT: dict[str, Any] = {"model": "guide", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 5}
SEARCH: dict[str, Any] = {"use_beam_search": True, "n": 3}


@pytest.fixture(scope="module")
def guide() -> Iterator[chaski.LLM]:
    with chaski.load("guide", threads=1, parallel=8) as found:
        yield found


def best(guide: chaski.LLM, num_beams: int, n: int, **options: Any) -> list[chaski.Answer]:
    return guide.generate_many([TEXT], n=n, num_beams=num_beams, num_predict=5, logprobs=True, **options)


def texts(reply: dict[str, Any]) -> list[str]:
    return [
        choice["text"] if "text" in choice else choice["message"]["content"] for choice in reply["choices"]
    ]


def test_choices_are_the_best_answers_of_one_search(server: Running, guide: chaski.LLM) -> None:
    expected = best(guide, 3, 3)
    reply = server.post("/v1/completions", COMPLETION | SEARCH).json
    assert texts(reply) == [answer.text for answer in expected]
    assert len(set(texts(reply))) == 3
    usage, prompt_tokens = reply["usage"], expected[0].prompt_tokens
    generated = sum(answer.done.generated_tokens for answer in expected)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt_tokens, generated)
    assert all(choice["logprobs"] is None for choice in reply["choices"])


def test_best_of_is_the_number_of_beams(server: Running, guide: chaski.LLM) -> None:
    expected = best(guide, 5, 2)
    reply = server.post("/v1/completions", COMPLETION | SEARCH | {"n": 2, "best_of": 5, "logprobs": 2}).json
    assert texts(reply) == [answer.text for answer in expected]
    for choice, answer in zip(reply["choices"], expected, strict=True):
        assert choice["logprobs"]["token_logprobs"] == [each.logprob for each in answer.logprobs]
        assert all(len(top) == 2 for top in choice["logprobs"]["top_logprobs"])


def test_scores_heed_the_length_penalty(server: Running, guide: chaski.LLM) -> None:
    for options in ({"length_penalty": -20.0}, {"length_penalty": 3.0, "early_stopping": "never"}):
        expected = [answer.text for answer in best(guide, 3, 3, **options)]
        assert texts(server.post("/v1/completions", COMPLETION | SEARCH | options).json) == expected


def test_several_prompts_have_a_search_each(server: Running) -> None:
    others = [TEXT, "how do I use fewer cores?"]
    alone = [
        text
        for prompt in others
        for text in texts(server.post("/v1/completions", COMPLETION | SEARCH | {"prompt": prompt}).json)
    ]
    assert texts(server.post("/v1/completions", COMPLETION | SEARCH | {"prompt": others}).json) == alone


def test_chats_are_searched_too(server: Running, guide: chaski.LLM) -> None:
    expected = guide.chat_many([CHAT["messages"]], n=2, num_beams=2, num_predict=5)
    assert texts(server.post("/v1/chat/completions", CHAT | SEARCH | {"n": 2}).json) == [
        answer.text for answer in expected
    ]
    one = server.post("/v1/chat/completions", CHAT | {"use_beam_search": True}).json
    assert texts(one) == [guide.chat(CHAT["messages"], temperature=0, num_predict=5).text]


def test_native_options_search_behind_the_defaults_of_a_model(server: Running, guide: chaski.LLM) -> None:
    """The model's temperature and other sampling options do not apply to a search."""
    options = {"num_beams": 4, "num_predict": 5, "length_penalty": 0.5, "early_stopping": True}
    asked = {"model": "helper", "prompt": TEXT, "raw": True, "stream": False, "options": options}
    reply = server.post("/api/generate", asked).json
    by_option = server.post("/v1/completions", COMPLETION | {"options": options}).json
    assert texts(by_option) == [reply["response"]]
    assert reply["response"] == guide.generate(TEXT, **options).text
    assert reply["eval_count"] <= 5


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"stream": True}, "has no stream"),
        ({"n": 9}, "num_beams is 9, but only 8 sequences are computed at a time"),
        ({"temperature": 0.7}, "leave out temperature"),
        ({"temperature": 0.7, "n": 1}, "leave out temperature"),
        ({"top_p": 0.5}, "option top_p is 0.5; a beam search"),
        ({"seed": 3}, "option seed is 3; a beam search"),
        ({"top_k": 5}, "option top_k is 5"),
        ({"logit_bias": {"5": 3}}, "option logit_bias is"),
        ({"min_tokens": 3}, "option min_tokens is 3"),
        ({"bad_words": ["x"]}, "option bad_words is"),
        ({"guided_regex": "a+"}, "guided_regex is"),
        ({"response_format": {"type": "json_object"}}, "response_format is"),
        ({"prompt_logprobs": 1}, "option prompt_logprobs is 1"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
        ({"length_penalty": "long"}, "length_penalty"),
        ({"length_penalty": 1e9}, "option length_penalty is"),
        ({"early_stopping": 3}, "option early_stopping is 3"),
        ({"use_beam_search": False, "length_penalty": 2}, "option length_penalty is for a beam search"),
        ({"use_beam_search": False, "options": {"num_beams": 2}}, "has no answer 3"),
        ({"use_beam_search": False, "options": {"num_beams": "x"}}, "num_beams"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_a_search_cannot_have_is_refused(
    server: Running, path: str, changes: dict[str, Any], problem: str
) -> None:
    body = (COMPLETION if path == "/v1/completions" else CHAT) | SEARCH | changes
    if changes.get("use_beam_search") is False and "options" not in changes:
        body |= {"n": 1}
    reply = server.post(path, body)
    assert reply.status == 400, reply.body
    assert problem in reply.json["error"]["message"]


def test_native_streams_are_refused(server: Running) -> None:
    reply = server.post("/api/generate", {"model": "guide", "prompt": TEXT, "options": {"num_beams": 2}})
    assert (reply.status, "has no stream" in reply.json["error"]) == (400, True)
