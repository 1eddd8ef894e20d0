"""Arguments from text get the types of the tool's schema, in one place for all parsers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from chaski.text.parsers import FoundCall
from chaski.text.parsers.schema import Schema, typed
from tests.text.parsing import parsed

DEFINITIONS = {
    "Place": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "Tree": {
        "anyOf": [
            {"type": "null"},
            {"$ref": "#/$defs/Tree"},
            {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
        ]
    },
    "Loop": {"$ref": "#/$defs/Loop"},
    "a/b": {"type": "integer"},
}


def value(text: str, schema: Any) -> Any:
    root = {"properties": {"p": schema}, "$defs": DEFINITIONS, "definitions": DEFINITIONS}
    return typed(text, Schema(root, root).member("p"))


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"$ref": "#/$defs/Place"}, '{"x": 1}', {"x": 1}),
        ({"$ref": "#/definitions/Place"}, "{'x': 1}", {"x": 1}),
        ({"$ref": "#/$defs/a~1b"}, "5", 5),
        ({"$ref": "#/$defs/Tree"}, "[null, [null]]", [None, [None]]),
        ({"$ref": "#/$defs/Loop"}, "5", 5),
        ({"$ref": "https://example.com/other"}, "5", 5),
        ({"allOf": [{"$ref": "#/$defs/Place"}, {"description": "Where."}]}, '{"x": 1}', {"x": 1}),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": "string"}]}, "5", "5"),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "True", True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", "5"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, ' "a" ', ' "a" '),
        ({"type": "integer"}, "null", None),
        ({"type": "integer"}, "9007199254740993", 9007199254740993),
        ({"type": "integer"}, str(10**40), 10**40),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, '"5"', 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "number"}, "1e-5", 1e-5),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "boolean"}, "TRUE", True),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "array"}, "['a', None, True]", ["a", None, True]),
        ({"type": "array"}, '["it\'s"]', ["it's"]),
        ({"type": "object"}, "{'a': {'b': (1, 2)}}", {"a": {"b": [1, 2]}}),
        ({"type": "null"}, "None", None),
        ({"enum": ["1", 2]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"enum": ["a", "b"]}, "null", "null"),
        ({"const": 7}, "7", 7),
        ({"properties": {"x": {}}}, '{"x": 1}', {"x": 1}),
        ({"items": {}}, "[1]", [1]),
        # Without a type, JSON that is not a string counts, in either spelling.
        ({}, "5", 5),
        ({}, "true", True),
        ({}, "['a']", ["a"]),
        ({}, "None", None),
        ({}, '"quoted"', '"quoted"'),
        ({}, "some words", "some words"),
        (True, "[1]", [1]),
    ],
)
def test_types(schema: Any, text: str, expected: Any) -> None:
    found = value(text, schema)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (
            "qwen3-coder",
            "<tool_call><function=f><parameter=at>{'x': 9007199254740993}</parameter></function></tool_call>",
        ),
        (
            "glm-4.7",
            "<tool_call>f<arg_key>at</arg_key><arg_value>{'x': 9007199254740993}</arg_value></tool_call>",
        ),
        (
            "minimax-m3",
            ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<at>]<]minimax[>[<x>'
            "9007199254740993]<]minimax[>[</x>]<]minimax[>[</at>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        ),
        ("minicpm", '<function name="f"><param name="at">{\'x\': 9007199254740993}</param></function>'),
    ],
)
def test_all_parsers_follow_references(format: str, text: str) -> None:
    parameters = {"properties": {"at": {"$ref": "#/$defs/Place"}}, "$defs": DEFINITIONS}
    tools = [{"function": {"name": "f", "parameters": parameters}}]
    assert parsed(format, text, tools=tools) == [FoundCall("f", {"at": {"x": 9007199254740993}})]


def test_schemas_that_grow_are_quick() -> None:
    definitions = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 9} for i in range(40)}
    root = {"$ref": "#/$defs/d0", "$defs": definitions}
    start = time.process_time()
    assert typed("5", Schema(root, root)) == 5
    assert time.process_time() - start < 1
