"""Hostile replacements of each value in requests to all routes are answered or refused."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from chaski.errors import OptionError
from chaski.server.network.bodies import load_object
from chaski.server.routes import ROUTES
from tests.server.running import Running

# As they appear in a body.
HOSTILE = {
    "ten to the 400th": "1" + "0" * 400,
    "ten to the 300th": "1" + "0" * 300,
    "-1e999": "-1e999",
    "largest float": "1.7e308",
    "two to the 63rd": str(2**63),
    "below zero": "-1",
    "fraction": "0.5",
    "half of a pair": r'"\ud800"',
    "halves in turn": r'"a\udc00\ud800b"',
    "NaN": "NaN",
    "nothing": "null",
    "true": "true",
    "empty text": '""',
    "text": '"\\u0000\\n\u202e"',
    "long text": '"' + "x" * 5000 + '"',
    "empty list": "[]",
    "list": '[[], {}, null, 1, "a"]',
    "object": '{"": null, "a": [1]}',
    "depth": "[" * 200 + "]" * 200,
}
IMPOSSIBLE = ("ten to the 400th", "-1e999", "NaN")

_OPTIONS = {"num_predict": 1, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": 1, "stop": ["x"]}
_TOOL = {
    "type": "function",
    "function": {
        "name": "get",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    },
}
_MESSAGES = [{"role": "system", "content": "Hi"}, {"role": "user", "content": "Hello"}]
_ITEMS = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]

BODIES: dict[str, dict[str, Any]] = {
    "/api/show": {"model": "guide", "verbose": False},
    "/api/memory": {"model": "guide", "num_ctx": 64, "parallel": 1},
    "/api/name": {"text": "ollama run guide"},
    "/api/generate": {
        "model": "guide",
        "prompt": "Hi",
        "system": "s",
        "stream": False,
        "keep_alive": "5m",
        "context": [1, 2],
        "format": {"type": "boolean"},
        "options": _OPTIONS,
    },
    "/api/chat": {
        "model": "guide",
        "messages": _MESSAGES,
        "stream": False,
        "logprobs": True,
        "top_logprobs": 1,
        "options": _OPTIONS,
    },
    "/api/embed": {"model": "guide", "input": ["a"], "dimensions": 2, "truncate": True},
    "/api/embeddings": {"model": "guide", "prompt": "a"},
    "/api/rerank": {"model": "guide", "query": "a", "documents": ["b"], "top_n": 1},
    "/api/tokenize": {"model": "guide", "text": "a"},
    "/api/detokenize": {"model": "guide", "tokens": [1, 2]},
    "/api/create": {"model": "", "from": "guide", "parameters": {"temperature": 1}, "system": "s"},
    "/api/copy": {"source": "none", "destination": "other"},
    "/api/pull": {"model": "127.0.0.1:9/a/b", "stream": False},
    "/api/push": {"model": "127.0.0.1:9/a/b", "stream": False},
    "/v1/chat/completions": {
        "model": "guide",
        "messages": _MESSAGES,
        "max_tokens": 1,
        "temperature": 0.5,
        "tools": [_TOOL],
        "tool_choice": "none",
        "logit_bias": {"3": 1},
        "stop": ["x"],
        "seed": 1,
    },
    "/v1/completions": {"model": "guide", "prompt": "Hi", "max_tokens": 1, "suffix": "", "logprobs": 1},
    "/v1/embeddings": {"model": "guide", "input": ["a"], "encoding_format": "base64"},
    "/v1/rerank": {"model": "guide", "query": "a", "documents": ["b"], "top_n": 1},
    "/v1/responses": {"model": "guide", "input": _ITEMS, "max_output_tokens": 1, "instructions": "Hi"},
    "/v1/responses/input_tokens": {"model": "guide", "input": _ITEMS},
    "/v1/messages": {"model": "guide", "max_tokens": 1, "system": "s", "messages": _MESSAGES[1:]},
    "/v1/messages/count_tokens": {"model": "guide", "messages": _MESSAGES[1:]},
    "/completion": {
        "model": "guide",
        "prompt": ["a", [1, "b"], {"prompt_string": "c", "multimodal_data": []}],
        "n_predict": 1,
        "n_cmpl": 1,
        "n_probs": 1,
        "logit_bias": [[3, 1], [4, False]],
        "stop": ["x"],
        "response_fields": ["content", "timings/prompt_n"],
    },
    "/embedding": {"model": "guide", "content": ["a", [1]], "embd_normalize": 1},
    "/score": {"model": "guide", "text_1": ["a"], "text_2": ["b"]},
    "/api/delete": {"model": "none"},
}
_ANY = {"model": "guide", "prompt": "a", "content": "a", "messages": _MESSAGES, "tokens": [1], "n_predict": 1}
_MARK = "@hostile@"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))


def replaced(body: dict[str, Any], path: tuple[Any, ...], text: str) -> bytes:
    """Return the body with the value at `path` written as `text`."""
    copy = json.loads(json.dumps(body))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = _MARK
    return json.dumps(copy).replace(json.dumps(_MARK), text).encode()


def routes() -> list[str]:
    """Return all routes with a body; routes outside the table above get a body of common fields."""
    found = [route.path for route in ROUTES if route.method in ("POST", "DELETE") and "{" not in route.path]
    assert BODIES.keys() <= set(found)
    return sorted(set(found) - {"/"})


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.parametrize("route", routes())
def test_hostile_values(server: Running, route: str) -> None:
    body, method = BODIES.get(route, _ANY), "DELETE" if route == "/api/delete" else "POST"
    faults = {}
    for path in list(leaves(body))[1:]:
        for name, text in HOSTILE.items():
            reply = server.ask(method, route, replaced(body, path, text))
            if reply.status >= 500 or (name in IMPOSSIBLE and reply.status != 400):
                faults[f"{'.'.join(map(str, path))} = {name}"] = (reply.status, reply.body[:200])
    assert faults == {}


def test_half_of_a_surrogate_pair_is_read_as_ollama_reads_it(server: Running) -> None:
    def ids(text: str) -> list[int]:
        reply = server.post("/api/tokenize", b'{"model": "guide", "text": "' + text.encode() + b'"}')
        assert reply.status == 200, reply.body
        tokens: list[int] = reply.json["tokens"]
        return tokens

    assert ids(r"a\ud800b") == ids(r"a\udc00b") == ids("a\ufffdb")
    assert ids(r"\ud83d\ude00") == ids("\U0001f600")
    body = rb'{"model": "guide", "messages": [{"role": "user", "content": "a\ud800"}], "max_tokens": 1}'
    for route in ("/api/chat", "/v1/chat/completions", "/v1/messages"):
        assert server.post(route, body).status == 200
    assert server.post("/api/show", rb'{"model": "gu\ud800ide"}').status in (400, 404)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (rb'{"model": "guide", "\ud800": 1, "\udc00": 2}', "the request"),
        (rb'{"metadata": {"a\ud800": "1", "a\udc00": "2"}}', "metadata"),
        (rb'{"metadata": {"a\ud800": "1", "a\ufffd": "2"}}', "metadata"),
        (rb'{"tools": [{}, {"parameters": {"properties": {"\ud800": {}, "\udfff": {}}}}]}', None),
    ],
)
def test_names_that_become_the_same_are_refused_with_their_place(body: bytes, place: str | None) -> None:
    place = place or r"tools\[1\].parameters.properties"
    with pytest.raises(OptionError, match=f"two names in {place} differ only in halves of surrogate pairs"):
        load_object(bytearray(body))


@pytest.mark.parametrize("route", ["/api/chat", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_two_tools_of_one_name_are_refused(server: Running, route: str) -> None:
    """The model could call only one of them."""

    def is_refused(*names: str, **second: str) -> bool:
        tools: list[dict[str, Any]] = [
            {"name": name, "description": "d", "input_schema": {"type": "object"}} for name in names
        ]
        if route != "/v1/messages":
            for tool in tools:
                tool.update(type="function", parameters=tool.pop("input_schema"))
        tools[-1].update(second)
        turns = [{"role": "user", "content": "a"}]
        body = {"model": "guide", "messages": turns, "input": turns, "max_tokens": 1, "tools": tools}
        reply = server.post(route, body)
        return reply.status == 400 and b"two tools with the name" in reply.body

    assert not is_refused("f", "g")
    assert not is_refused("f", "f")
    assert is_refused("f", "f", description="another")
    assert is_refused("f\ud800", "f\udc00")


def test_halves_of_pairs_take_time_in_proportion() -> None:
    """Once long names were copied into the path of each of many items."""
    name, items = "n" * 30_000, ",".join(["1"] * 30_000)
    body = f'{{"{name}": [{items}], "b\\ud800": {{"x": ["\\udc00"]}}}}'.encode()
    tracemalloc.start()
    found = load_object(bytearray(body))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["b\ufffd"] == {"x": ["\ufffd"]}
    assert most < 8 << 20
