"""Calls that a request requires: every text that the grammar accepts is parsed as a call that can be sent."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from chaski.chat.demanded_calls import DemandedCall, schema_of_call
from chaski.errors import OptionError
from chaski.sample.schema import closed
from chaski.server.dialects.openai.conversation import call_of
from chaski.server.http.endpoint import Endpoint, HTTPRequest
from chaski.server.network.jsons import InnerJson, dump
from chaski.text.parsers import Content, FoundCall, Piece, Thought
from chaski.text.parsers.formats import parser_for


def read(text: str, prompt: str = "") -> list[Piece]:
    parser = DemandedCall(parser_for("hermes", (), prompt))
    return [*parser.feed(text), *parser.flush()]


def arguments_of(text: str) -> Mapping[str, Any]:
    (call,) = read(f'{{"name": "f", "arguments": {text}}}')
    assert isinstance(call, FoundCall)
    return call.arguments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1e999}', {"a": 1.7976931348623157e308}),
        ('{"a": [-1E+999, 1e-999]}', {"a": [-1.7976931348623157e308, 0.0]}),
        ('{"a": %s}' % ("7" * 5000), {"a": 1.7976931348623157e308}),
        ('{"a": "\\ud800", "\\udfff": 1}', {"a": "\ufffd", "\ufffd": 1}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        ("{}", {}),
    ],
)
def test_what_no_reader_takes_becomes_what_all_take(text: str, expected: Any) -> None:
    found = arguments_of(text)
    assert found == expected
    assert json.loads(dump(found), parse_constant=pytest.fail) == expected
    assert all(math.isfinite(value) for value in found.values() if isinstance(value, float))


@pytest.mark.parametrize(
    "text",
    ['{"name": "f", "argu', "[" * 100_000, '{"name": "f"}', "3", '{"name": "f", "arguments": NaN}'],
)
def test_what_is_no_call_is_text(text: str) -> None:
    assert read(text) == [Content(text)]


def test_thinking_goes_before_and_nothing_is_nothing() -> None:
    assert read('<think>hm</think>{"name": "f", "arguments": {}}') == [Thought("hm"), FoundCall("f", {})]
    assert read("<think>hm") == [Thought("hm")]
    assert read("") == []


def tool(parameters: Any, name: Any = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_references_of_a_tool_are_to_its_own_definitions() -> None:
    tools = [
        tool({"properties": {"at": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": {"type": kind}}}, kind)
        for kind in ("string", "integer")
    ]
    found = closed(schema_of_call(tools))
    kinds = [
        found["$defs"][choice["properties"]["arguments"]["properties"]["at"]["$ref"].rpartition("/")[2]]
        for choice in found["anyOf"]
    ]
    assert kinds == [{"type": "string"}, {"type": "integer"}]


@pytest.mark.parametrize("parameters", [None, {}, {"properties": {}}, {"type": ["object", "null"]}])
def test_arguments_are_always_an_object(parameters: Any) -> None:
    (choice,) = schema_of_call([tool(parameters)])["anyOf"]
    assert choice["properties"]["arguments"]["type"] == "object"


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": ["array"]}, 7, [1]])
def test_parameters_that_are_no_object(parameters: Any) -> None:
    with pytest.raises(OptionError, match="parameters of the tool 'f' must be the schema of an object"):
        schema_of_call([tool(parameters)])


@pytest.mark.parametrize("name", [None, "", 3])
def test_a_tool_without_a_name(name: Any) -> None:
    with pytest.raises(OptionError, match="has no name"):
        schema_of_call([tool({}, name)])


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', "[]", "{", "[" * 100_000])
def test_arguments_of_earlier_calls_that_are_no_strict_json_stay_text(text: str) -> None:
    assert call_of("id", "f", text, InnerJson()) == {"id": "id", "function": {"name": "f", "arguments": text}}


def test_a_reply_that_is_no_json_is_an_error_of_the_api() -> None:
    """It must not be an answer that never arrives."""
    sent: list[Any] = []

    async def handler(http: HTTPRequest) -> dict[str, Any]:
        return {"number": float("inf")}

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(10)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "query_string": b"", "method": "GET", "path": "/api/x", "headers": []}
    asyncio.run(Endpoint(handler)(scope, receive, send))
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"]) == {"error": "internal server error"}
