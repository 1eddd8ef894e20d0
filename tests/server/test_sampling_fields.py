"""Options of vLLM and llama.cpp over HTTP: values that reach the model on each route, and errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.chat.requests import Generate
from chaski.names import ModelName
from chaski.sample.schema import NAME
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": False}
OPENAI: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "tiny", "prompt": "x"},
    "/v1/responses": {"model": "tiny", "input": "x"},
}
NATIVE: dict[str, dict[str, Any]] = {
    "/api/chat": CHAT,
    "/api/generate": {"model": "tiny", "prompt": "x", "stream": False},
}
OPTIONS: list[tuple[str, Any, Any]] = [
    ("min_tokens", 3, 3),
    ("ignore_eos", True, True),
    ("stop_token_ids", [5, 6], [5, 6]),
    ("include_stop_str_in_output", True, True),
    ("bad_words", ["a", "b"], ["a", "b"]),
    ("bad_words", "a", ["a"]),
    ("repetition_penalty", 1.5, 1.5),
    ("dry_multiplier", 0.5, 0.5),
    ("dry_base", 2, 2.0),
    ("dry_allowed_length", 3, 3),
    ("dry_penalty_last_n", 64, 64),
    ("dry_penalty_last_n", -1, None),
    ("dry_sequence_breakers", ["\n", "x"], ["\n", "x"]),
    ("xtc_probability", 0.5, 0.5),
    ("xtc_threshold", 0.2, 0.2),
    ("top_n_sigma", 1, 1.0),
]
WRONG: list[tuple[str, Any]] = [
    ("min_tokens", "many"),
    ("min_tokens", -1),
    ("ignore_eos", "yes"),
    ("ignore_eos", 1),
    ("stop_token_ids", 5),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", [1.5]),
    ("stop_token_ids", [-1]),
    ("include_stop_str_in_output", 0),
    ("bad_words", 7),
    ("bad_words", [7]),
    ("bad_words", [""]),
    ("repetition_penalty", 0),
    ("repetition_penalty", "1"),
    ("dry_multiplier", -1),
    ("dry_base", 0.5),
    ("dry_allowed_length", -1),
    ("dry_sequence_breakers", {"a": 1}),
    ("xtc_probability", 1.5),
    ("xtc_threshold", True),
    ("top_n_sigma", []),
]

script = Script()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    recipe = Recipe(sources=[write_tiny_llama(folder / "tiny.gguf")], parameters={"temperature": 0.5})
    for _ in create(Store(folder), ModelName.parse("tiny"), recipe):
        pass
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with running(Settings(address=SOMEWHERE), folder, script.open) as found:
        yield found


def asked() -> dict[str, Any]:
    return dict([call for call in script.asked if isinstance(call, Generate)][-1].options)


@pytest.mark.parametrize("path", OPENAI)
@pytest.mark.parametrize(("name", "value", "expected"), OPTIONS)
def test_openai_options(server: Running, path: str, name: str, value: Any, expected: Any) -> None:
    assert server.post(path, {**OPENAI[path], name: value}).status == 200
    assert asked()[name] == expected


@pytest.mark.parametrize("path", NATIVE)
@pytest.mark.parametrize(("name", "value", "expected"), OPTIONS)
def test_native_options(server: Running, path: str, name: str, value: Any, expected: Any) -> None:
    assert server.post(path, {**NATIVE[path], "options": {name: value}}).status == 200
    assert asked()[name] == expected


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_values_are_named(server: Running, name: str, value: Any) -> None:
    for path, body in (*OPENAI.items(), *NATIVE.items()):
        given = {name: value} if path in OPENAI else {"options": {name: value}}
        reply = server.post(path, {**body, **given})
        assert reply.status == 400
        assert name in reply.body.decode()


@pytest.mark.parametrize("path", OPENAI)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"guided_json": SCHEMA}, {"format": SCHEMA}),
        ({"guided_json": '{"type": "integer"}'}, {"format": {"type": "integer"}}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"structured_outputs": {"json": SCHEMA}}, {"format": SCHEMA}),
        ({"structured_outputs": {"json_object": True}}, {"format": "json"}),
        ({"structured_outputs": {"json_object": False, "regex": "a"}}, {"regex": "a"}),
        ({"structured_outputs": {"choice": ["a"]}}, {"choice": ["a"]}),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, {"grammar": 'start: "a"'}),
        ({"json_schema": SCHEMA}, {"format": SCHEMA}),
        ({"grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"grammar": "", "json_schema": SCHEMA}, {"format": SCHEMA}),
        ({"structured_outputs": {}}, {}),
    ],
)
def test_constraints(server: Running, path: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert server.post(path, {**OPENAI[path], **given}).status == 200
    names = ("format", "regex", "choice", "grammar")
    found = {name: value for name, value in asked().items() if name in names}
    if isinstance(found.get("format"), dict):
        assert found["format"][NAME] in (*given, *(f"{name}.json" for name in given))
        found["format"] = {key: value for key, value in found["format"].items() if key != NAME}
    assert found == expected


def test_native_constraints(server: Running) -> None:
    for path, body in NATIVE.items():
        for name, value in (("regex", "a+"), ("choice", ["a"]), ("grammar", 'start: "a"')):
            assert server.post(path, {**body, "options": {name: value}}).status == 200
            assert asked()[name] == value
        reply = server.post(path, {**body, "format": "json", "options": {"regex": "a"}})
        assert (reply.status, reply.error) == (
            400,
            "options format and regex exclude each other; give one of them",
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"guided_json": 7}, "guided_json must be an object"),
        ({"guided_json": "{"}, "guided_json is not valid JSON"),
        ({"guided_json": "[1]"}, "guided_json must be an object"),
        ({"guided_regex": 7}, "guided_regex must be a string"),
        ({"guided_choice": {"a": 1}}, "guided_choice must be a list"),
        ({"guided_choice": [1]}, "guided_choice[0] must be a string"),
        ({"guided_choice": []}, "guided_choice is"),
        ({"guided_grammar": ["a"]}, "guided_grammar must be a string"),
        ({"structured_outputs": "json"}, "structured_outputs must be an object"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json must be an object"),
        (
            {"structured_outputs": {"json_object": "yes"}},
            "structured_outputs.json_object must be true or false",
        ),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag is not supported",
        ),
        ({"json_schema": [1]}, "json_schema must be an object"),
        ({"grammar": 3}, "grammar must be a string"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_json and guided_regex exclude each other"),
        ({"grammar": "x", "json_schema": SCHEMA}, "json_schema and grammar exclude each other"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs.regex and structured_outputs.choice",
        ),
        ({"options": {"regex": "a"}, "guided_grammar": "x"}, "option regex and guided_grammar exclude"),
        ({"min_tokens": 5, "max_tokens": 4, "max_output_tokens": 4}, "option min_tokens is 5"),
        ({"guided_choice": ["a"] * 5000}, "guided_choice is"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice is"),
        ({"max_tokens": -2, "max_output_tokens": -2}, "must be at least 0, or -1"),
    ],
)
def test_what_cannot_be_followed_is_named(server: Running, given: dict[str, Any], message: str) -> None:
    for path, body in OPENAI.items():
        reply = server.post(path, {**body, **given})
        assert reply.status == 400
        assert message in reply.json["error"]["message"]


def test_a_format_and_another_constraint(server: Running) -> None:
    chat = {**CHAT, "response_format": {"type": "json_object"}, "guided_choice": ["a"]}
    reply = server.post("/v1/chat/completions", chat)
    assert "response_format and guided_choice exclude each other" in reply.json["error"]["message"]
    response = {**OPENAI["/v1/responses"], "text": {"format": {"type": "json_object"}}, "grammar": "x"}
    reply = server.post("/v1/responses", response)
    assert "text.format and grammar exclude each other" in reply.json["error"]["message"]


def test_no_limit_is_where_the_context_ends(server: Running) -> None:
    for path, body in OPENAI.items():
        name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        server.post(path, {**body, name: -1})
        assert asked()["num_predict"] == -2
        server.post(path, {**body, name: 7})
        assert asked()["num_predict"] == 7


def test_other_routes_refuse_them_by_name(server: Running) -> None:
    body = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    for given in ({"guided_regex": "a"}, {"min_tokens": 3}, {"bad_words": ["a"]}):
        reply = server.post("/v1/messages", {**body, **given})
        assert reply.status == 400
        assert min(given) in reply.body.decode()


@pytest.fixture(scope="module")
def real(folder: Path) -> Iterator[Running]:
    patch = pytest.MonkeyPatch()
    patch.setenv("CHASKI_THREADS", "1")
    with running(Settings(address=SOMEWHERE), folder) as found:
        yield found
    patch.undo()


def test_answers_of_a_model_in_a_worker(real: Running) -> None:
    def say(**given: Any) -> str:
        reply = real.post("/v1/chat/completions", {**CHAT, "max_tokens": 60, "seed": 1, **given})
        assert reply.status == 200, reply.body
        return str(reply.json["choices"][0]["message"]["content"])

    assert say(guided_choice=["yes", "no"]) in {"yes", "no"}
    assert re.fullmatch("[ab]{4}", say(guided_regex="[ab]{4}"))
    assert say(grammar='start: "x" "y"') == "xy"
    assert re.fullmatch(r'\{\s*"a"\s*:\s*-?\d+\s*\}', say(json_schema=SCHEMA, logit_bias={"125": 20}))
    assert say(guided_regex="a+b", stop_token_ids=[98], include_stop_str_in_output=True).endswith("b")
    many: dict[str, Any] = {
        "repetition_penalty": 1.2,
        "dry_multiplier": 0.8,
        "xtc_probability": 0.5,
        "top_n_sigma": 2,
        "bad_words": ["e"],
        "min_tokens": 60,
        "ignore_eos": True,
    }
    assert say(**many) == say(**many)
    assert "e" not in say(**many)
    wrong: dict[str, Any] = {
        "grammar": {"grammar": "start: ("},
        "guided_grammar": {"guided_grammar": "start: ("},
        "guided_regex": {"guided_regex": "("},
        "structured_outputs.regex": {"structured_outputs": {"regex": "("}},
        "structured_outputs.grammar": {"structured_outputs": {"grammar": "root ::= ("}},
        "option regex": {"options": {"regex": "("}},
    }
    for name, given in wrong.items():
        for path, body in OPENAI.items():
            reply = real.post(path, {**body, **given})
            assert reply.status == 400
            assert reply.json["error"]["message"].startswith(f"{name} ")


def test_top_logprobs_without_logprobs_are_not_ignored_in_silence(server: Running) -> None:
    reply = server.post("/v1/chat/completions", {**CHAT, "top_logprobs": 2})
    assert (reply.status, b"set logprobs to true" in reply.body) == (400, True)
    reply = server.post("/v1/responses", {**OPENAI["/v1/responses"], "top_logprobs": 2})
    assert (reply.status, reply.headers["x-chaski-ignored"]) == (200, "field top_logprobs")
