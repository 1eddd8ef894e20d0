"""Closing schemas: the texts that llguidance accepts, against rules written by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chaski.errors import OptionError
from chaski.sample.schema import closed
from tests.sample.schema.answers import accepts

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
PERSON: dict[str, Any] = {"type": "object", "properties": {"name": TEXT}, "required": ["name"]}
BASE: dict[str, Any] = {"$defs": {"Base": PERSON}}
BY_PART = [{"type": "object", "properties": {"a": TEXT}}, {"type": "object", "properties": {"b": WHOLE}}]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object"}, [{}, {"any": [1]}], [3]),
        ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
        (PERSON, [{"name": "x"}], [{"name": "x", "more": 1}, {}]),
        (PERSON | {"additionalProperties": True}, [{"name": "x", "more": 1}], [{}]),
        (PERSON | {"additionalProperties": WHOLE}, [{"name": "x", "more": 1}], [{"name": "x", "more": "y"}]),
        (PERSON | {"unevaluatedProperties": False}, [{"name": "x"}], [{"name": "x", "more": 1}]),
        (PERSON | {"unevaluatedProperties": WHOLE}, [{"name": "x", "m": 1}], [{"name": "x", "m": "y"}]),
        (PERSON | {"required": ["name", "other"]}, [{"name": "x", "other": [1]}], [{"name": "x"}]),
        ({"patternProperties": {"^x": WHOLE}}, [{"x1": 1}], [{"y": 1}, {"x1": "a"}]),
        (PERSON | {"patternProperties": {"^x": WHOLE}}, [{"name": "x", "x1": 1}], [{"name": "x", "y": 1}]),
        ({"type": "array", "items": PERSON}, [[{"name": "x"}]], [[{"name": "x", "more": 1}]]),
        (
            {"type": "array", "prefixItems": [PERSON], "items": False},
            [[{"name": "x"}]],
            [[{"name": "x", "more": 1}]],
        ),
        (
            {"type": "object", "additionalProperties": PERSON},
            [{"a": {"name": "x"}}],
            [{"a": {"name": "x", "more": 1}}],
        ),
        (PERSON | {"type": ["object", "null"]}, [None], [{"name": "x", "m": 1}]),
        ({"anyOf": [PERSON, {"type": "object"}]}, [{"name": "x", "more": 1}], [3]),
        ({"anyOf": [PERSON, WHOLE]}, [{"name": "x"}, 4], [{"name": "x", "more": 1}]),
        ({"oneOf": [PERSON, WHOLE]}, [{"name": "x"}, 4], [{"name": "x", "more": 1}]),
        (
            PERSON | {"anyOf": [{"properties": {"a": WHOLE}}, {"properties": {"b": TEXT}}]},
            [{"name": "x", "a": 1}, {"name": "x", "b": "y"}, {"name": "x"}],
            [{"name": "x", "a": 1, "b": "y"}, {"name": "x", "c": 1}],
        ),
        (
            {
                "type": "object",
                "properties": {"a": TEXT, "b": TEXT},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            [{"a": "x"}, {"b": "x"}, {"a": "x", "b": "x"}],
            [{}, {"a": "x", "c": 1}],
        ),
        ({"allOf": BY_PART}, [{"a": "x", "b": 1}, {"b": 1}, {}], [{"a": "x", "c": 1}, {"a": 1}]),
        ({"allOf": BY_PART, "unevaluatedProperties": False}, [{"a": "x", "b": 1}], [{"c": 1}]),
        ({"allOf": BY_PART, "additionalProperties": True}, [{"a": "x", "b": 1, "c": 1}], [{"a": 1}]),
        ({"$ref": "#/$defs/Base", **BASE}, [{"name": "x"}], [{"name": "x", "more": 1}]),
        (
            {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"age": WHOLE}}], **BASE},
            [{"name": "x", "age": 1}],
            [{"age": 1}, {"name": "x", "more": 1}],
        ),
        (
            {"$ref": "#/$defs/Base", "properties": {"age": WHOLE}, **BASE},
            [{"name": "x", "age": 1}],
            [{"name": "x", "more": 1}],
        ),
        (
            {"properties": {"child": {"allOf": [{"$ref": "#/$defs/Base"}], "title": "C"}}, **BASE},
            [{"child": {"name": "x"}}],
            [{"child": {"name": "x", "more": 1}}],
        ),
        (
            {
                "properties": {"v": WHOLE, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
                "required": ["next"],
            },
            [{"v": 1, "next": {"next": None}}],
            [{"v": 1, "next": {"next": None, "more": 1}}],
        ),
        (
            {"properties": {"a": {"$ref": "#/definitions/P~1Q"}}, "definitions": {"P/Q": PERSON}},
            [{"a": {"name": "x"}}],
            [{"a": {"name": "x", "more": 1}}],
        ),
        (
            {"properties": {"a": PERSON, "b": {"$ref": "#/properties/a"}}},
            [{"b": {"name": "x"}}],
            [{"b": {"name": "x", "more": 1}}],
        ),
        (
            {"properties": {"a": {"$id": "urn:a", "$ref": "#/$defs/P", "$defs": {"P": PERSON}}}},
            [{"a": {"name": "x"}}],
            [{"a": {"name": "x", "more": 1}}],
        ),
        ({"$ref": "#p", "$defs": {"P": {"$anchor": "p", **PERSON}}}, [{"name": "x"}], [{}]),
        ({"enum": [{"properties": {"a": 1}, "b": 2}]}, [{"properties": {"a": 1}, "b": 2}], [{}]),
        ({"properties": {"properties": {"type": "object"}}}, [{"properties": {"a": 1}}], [{"a": 1}]),
    ],
)
def test_what_a_closed_schema_takes(schema: Any, good: list[Any], bad: list[Any]) -> None:
    before = json.dumps(schema)
    assert [value for value in good if not accepts(schema, value)] == []
    assert [value for value in bad if accepts(schema, value)] == []
    assert json.dumps(schema) == before


def test_a_schema_that_grows_without_end_is_refused() -> None:
    many = {f"key{number}": True for number in range(2000)}
    parts = {f"p{number}": {"$ref": "#/$defs/Many", "required": []} for number in range(2000)}
    with pytest.raises(OptionError, match="too many keys"):
        closed({"properties": parts, "$defs": {"Many": {"properties": many}}})


def test_references_that_branch_are_followed_once() -> None:
    """Two branches at each of sixty steps would be too many paths."""
    steps: dict[str, Any] = {
        f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}, {"$ref": f"#/$defs/s{n + 1}"}]} for n in range(60)
    }
    steps["s60"] = {"properties": {"a": WHOLE}}
    found = closed({"allOf": [{"$ref": "#/$defs/s0"}], "$defs": steps})
    assert found["additionalProperties"] is False
    assert found["properties"] == {"a": True}


@pytest.mark.parametrize("ref", ["#/$defs/none", "#/$defs/list/9", "#/$defs/list/x"])
def test_a_reference_to_nothing(ref: str) -> None:
    with pytest.raises(OptionError, match=ref.replace("$", r"\$")):
        closed({"properties": {"a": {"$ref": ref}}, "$defs": {"list": [1]}})


def test_references_that_only_refer_to_each_other() -> None:
    around = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
    with pytest.raises(OptionError, match=r"#/\$defs/a refers to itself without end"):
        closed({"$ref": "#/$defs/a", "$defs": around})
