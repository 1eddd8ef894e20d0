"""Keywords of schemas: every answer follows them, and errors name the place."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest

from chaski.chat.demanded_calls import schema_of_call
from chaski.errors import OptionError
from chaski.sample.schema import SchemaError, keywords, named
from chaski.sample.schema.numbers import digits_between
from tests.sample.schema.answers import accepts, accepts_text, random_answer
from tests.sample.schema.test_patterns import EMAIL

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
LARGE = 2**60 + 1
"""An integer that a double cannot represent."""
OBJECT: dict[str, Any] = {"type": "object"}
BOTH = OBJECT | {"properties": {"a": WHOLE, "b": WHOLE}}
KINDS = OBJECT | {
    "properties": {"kind": {"enum": ["n", "t"]}, "v": {"type": ["string", "integer"]}},
    "required": ["kind", "v"],
    "if": {"properties": {"kind": {"const": "n"}}},
    "then": {"properties": {"v": WHOLE}},
    "else": {"properties": {"v": {"type": "string", "maxLength": 3}}},
}

CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    (TEXT | {"format": "color"}, ["red"], [1]),
    (TEXT | {"format": "email", "pattern": EMAIL}, ["a@b.cd"], ["a..b@b.cd"]),
    (
        {"oneOf": [BOTH | {"required": ["a"]}, BOTH | {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}],
    ),
    (
        OBJECT | {"propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": WHOLE},
        [{"abc": 1}, {}],
        [{"abcd": 1}, {"abc": "x"}],
    ),
    (
        OBJECT | {"additionalProperties": WHOLE, "propertyNames": {"enum": ["x", "y"]}},
        [{"x": 1, "y": 2}, {}],
        [{"z": 1}, {"x": "x"}],
    ),
    (
        OBJECT | {"propertyNames": {"$ref": "#/$defs/E"}, "$defs": {"E": {"enum": ["q"]}}},
        [{"q": [1]}],
        [{"r": 1}],
    ),
    (OBJECT | {"propertyNames": {"minLength": 2, "maxLength": 3}}, [{"ab": 1}], [{"a": 1}, {"abcd": 1}]),
    (BOTH | {"propertyNames": {"pattern": "^a"}}, [{"a": 1}, {}], [{"b": 1}]),
    (BOTH | {"dependentRequired": {"a": ["b"]}}, [{"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
    (
        BOTH | {"dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}, "required": ["b"]}}},
        [{"b": 1}, {"a": 1, "b": 5}],
        [{"a": 1}, {"a": 1, "b": 1}],
    ),
    (BOTH | {"not": {"required": ["a", "b"]}}, [{"a": 1}, {"b": 1}, {}], [{"a": 1, "b": 1}]),
    (TEXT | {"not": {"enum": ["", "a"]}}, ["b", "ab"], ["", "a"]),
    (TEXT | {"not": {"pattern": "a"}}, ["b", ""], ["bab"]),
    ({"enum": ["a", "b", True], "not": {"const": "a"}}, ["b", True], ["a"]),
    ({"type": ["string", "null"], "not": {"type": "null"}}, ["a"], [None]),
    (
        KINDS,
        [{"kind": "n", "v": 1}, {"kind": "t", "v": "x"}],
        [{"kind": "n", "v": "x"}, {"kind": "t", "v": 1}],
    ),
    (
        OBJECT
        | {
            "properties": {"on": {"type": "boolean"}, "z": WHOLE},
            "if": {"properties": {"on": {"const": True}}, "required": ["on"]},
            "then": {"required": ["z"]},
        },
        [{"on": False}, {}, {"on": True, "z": 1}],
        [{"on": True}],
    ),
    (WHOLE | {"minimum": LARGE}, [LARGE, 10**30], [LARGE - 1, 5, -LARGE]),
    (WHOLE | {"exclusiveMaximum": -LARGE}, [-LARGE - 1], [-LARGE, 0, LARGE]),
    (WHOLE | {"minimum": 0, "maximum": 2**64 - 1}, [0, LARGE, 2**64 - 1], [-1, 2**64]),
    ({"enum": [LARGE, "x", True, 1]}, [LARGE, "x", True, 1], [LARGE - 1, LARGE + 1, False]),
    (
        OBJECT
        | {"properties": {"id": {"const": LARGE}, "n": TEXT, "of": {"enum": [-LARGE]}}, "required": ["n"]},
        [{"id": LARGE, "n": "x"}, {"n": "x", "of": -LARGE}],
        [{"id": LARGE - 1, "n": "x"}, {"id": LARGE}, {}],
    ),
    (
        {"type": "array", "items": {"enum": [LARGE, 5]}, "minItems": 1, "maxItems": 2},
        [[LARGE], [5, LARGE]],
        [[], [LARGE - 1], [5, 5, 5]],
    ),
    (
        {
            "$ref": "#/$defs/A",
            "$defs": {
                "A": OBJECT | {"properties": {"id": WHOLE | {"minimum": LARGE}, "of": {"$ref": "#/$defs/A"}}}
            },
        },
        [{"id": LARGE, "of": {"id": LARGE, "of": {}}}],
        [{"of": {"id": LARGE - 1}}],
    ),
    (
        OBJECT | {"properties": {"a": WHOLE | {"minimum": LARGE}}, "additionalProperties": TEXT},
        [{"a": 2**60 + 256, "b": "x"}],
        [{"a": LARGE - 1}, {"b": 1}],
    ),
    ({"type": ["string", "integer"], "minimum": LARGE}, ["x", LARGE], [LARGE - 1]),
    ({"type": "number", "minimum": LARGE}, [2**60 + 256], [LARGE - 1]),
    (WHOLE | {"multipleOf": 3, "maximum": LARGE}, [3 * 2**50], [LARGE + 2]),
    ({"type": "number", "minimum": 0.5, "exclusiveMaximum": 1e30}, [0.5, 2**60], [0.4]),
    ({"type": "array", "items": TEXT, "uniqueItems": True, "maxItems": 1}, [["a"], []], [["a", "b"]]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda value: json.dumps(value)[:40])
def test_what_a_schema_takes(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    before = json.dumps(schema)
    assert [value for value in good if not accepts(schema, value)] == []
    assert [value for value in bad if accepts(schema, value)] == []
    assert json.dumps(schema) == before


def test_a_declared_key_is_not_given_twice_by_escapes() -> None:
    schema = OBJECT | {"properties": {"a": WHOLE}, "required": ["a"], "additionalProperties": TEXT}
    assert accepts_text(schema, '{"a": 1, "b": "x"}')
    assert not accepts_text(schema, r'{"a": 1, "\u0061": "x"}')


@pytest.mark.parametrize("index", range(len(CASES)))
def test_random_answers_are_valid(index: int) -> None:
    """The package `jsonschema` checks them; `oneOf` is read as `anyOf`."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = CASES[index][0]
    as_read = json.loads(json.dumps(schema).replace("oneOf", "anyOf"))
    random = Random(index)
    for text in (random_answer(schema, random) for _ in range(20)):
        if text:
            jsonschema.Draft202012Validator(as_read).validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            {"type": "array", "uniqueItems": True},
            "option format .*: #: uniqueItems cannot be followed; leave it out",
        ),
        (OBJECT | {"properties": {"a": {"contains": WHOLE}}}, "#/properties/a: contains cannot be followed"),
        (OBJECT | {"properties": {"a/b": {"pattern": "(?<=a)b"}}}, "#/properties/a~1b/pattern: look-behind"),
        (
            OBJECT | {"properties": {"q": {"items": {"type": "strin"}}}},
            "#/properties/q/items: Invalid type: strin",
        ),
        ({"enum": [[2**60 + 1]]}, "#/enum: the integer 1152921504606846977 cannot be written exactly"),
        ({"enum": [[10**1000 + 1]]}, "#/enum: the integer 1000"),
        ({"type": "number", "multipleOf": 0.07}, "#/multipleOf: multipleOf 0.07 cannot be followed exactly"),
        ({"not": {"minimum": 3}}, "#/not: the opposite of minimum cannot be followed"),
        ({"items": 5}, "#/items: this must be a schema"),
        (
            named({"items": {"type": 1}}, "response_format"),
            "^response_format holds a schema .*: #/items/type: this must",
        ),
    ],
)
def test_errors_name_the_place(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why) as caught:
        accepts(schema, 1)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("broken", [{"type": "strin"}, {"type": "array", "uniqueItems": True}])
def test_an_error_names_the_tool(broken: dict[str, Any]) -> None:
    tools = [
        {
            "function": {
                "name": f"tool{n}",
                "parameters": OBJECT | {"properties": {"a": broken if n == 20 else TEXT}},
            }
        }
        for n in range(30)
    ]
    with pytest.raises(
        OptionError, match=r"^the tool 'tool20' holds a schema .*: #/properties/a: "
    ) as caught:
        accepts(schema_of_call(tools), 1)
    assert len(str(caught.value)) < 300


def test_a_call_with_large_integers() -> None:
    function = {
        "name": "get",
        "parameters": OBJECT | {"properties": {"id": {"enum": [LARGE]}}, "required": ["id"]},
    }
    schema = schema_of_call([{"function": function}])
    assert accepts(schema, {"name": "get", "arguments": {"id": LARGE}})
    assert not accepts(schema, {"name": "get", "arguments": {"id": LARGE - 1}})


def test_integers_between() -> None:
    random = Random(1)
    for _ in range(2000):
        least, most = (random.choice([None, random.randint(-1200, 1200)]) for _ in range(2))
        found = digits_between(least, most)
        for number in (*(random.randint(-1300, 1300) for _ in range(20)), least or 0, most or 0):
            is_between = (least is None or number >= least) and (most is None or number <= most)
            assert (found is not None and re.fullmatch(found, str(number)) is not None) is is_between


def test_patterns_of_a_schema_have_some_seconds_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keywords, "_MOST_SECONDS", 0)
    schema = {"type": "object", "properties": {"a": {"pattern": "^a$"}}}
    with pytest.raises(
        SchemaError, match="#/properties/a/pattern: the patterns up to here took more than 0 s"
    ):
        keywords.prepared(schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "if": {"properties": 2}, "then": {}}, "#/if/properties: this must be an object"),
        ({"type": "object", "not": {"required": 5, "properties": {}}}, "#/not/required: this must be a list"),
        ({"not": {"anyOf": [3]}}, "#/not: this must be a schema"),
        ({"enum": 2**60}, "#/enum: this must be a list"),
        (
            {"properties": {"a": {"const": LARGE}}, "required": [{}]},
            "#/required: this must be a list of texts",
        ),
        ({"type": "array", "minItems": "2", "items": {"const": LARGE}}, "#/minItems: this must be a number"),
        ({"type": {"a": 1}}, "#/type: this must be a text or a list"),
    ],
)
def test_values_of_another_type_are_refused_with_their_place(schema: dict[str, Any], place: str) -> None:
    """Found by fuzzing: some of them were errors of the server."""
    with pytest.raises(OptionError, match=re.escape(place)):
        accepts(schema, [])
