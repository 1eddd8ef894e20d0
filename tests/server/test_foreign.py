"""What becomes of every field that the packages of the makers know, and of those of other engines."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.errors import UnsupportedError
from chaski.server.fields.audit import unread_fields
from chaski.server.fields.unread import HARMLESS, REFUSED
from chaski.server.routes import BODIES
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running

HEADER = "x-chaski-ignored"
# What the header tells of: wishes that models here do not know, or that only their makers' servers fulfil.
TOLD = {
    *("moderation", "verbosity", "web_search_options", "access_programs", "background_options", "image"),
    *("width", "height", "steps", "personality", "context_management", "compaction", "thread"),
}
OPENAI, ANTHROPIC = "openai/types/", "anthropic/types/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(Settings(address=SOMEWHERE), tmp_path_factory.mktemp("store"), Script().open) as found:
        yield found


def documented(module: str, *classes: str) -> set[str]:
    """The fields of classes of an installed package."""
    package, _, rest = module.partition("/")
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations
    tree = ast.parse((Path(found.submodule_search_locations[0]) / rest).read_text())
    return {
        item.target.id
        for each in tree.body
        if isinstance(each, ast.ClassDef) and each.name in classes
        for item in each.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


@pytest.mark.parametrize(
    ("path", "module", "classes"),
    [
        (
            "/v1/chat/completions",
            f"{OPENAI}chat/completion_create_params.py",
            ["CompletionCreateParamsBase"],
        ),
        ("/v1/completions", f"{OPENAI}completion_create_params.py", ["CompletionCreateParamsBase"]),
        ("/v1/embeddings", f"{OPENAI}embedding_create_params.py", ["EmbeddingCreateParams"]),
        ("/v1/responses", f"{OPENAI}responses/response_create_params.py", ["ResponseCreateParamsBase"]),
        (
            "/v1/responses/input_tokens",
            f"{OPENAI}responses/input_token_count_params.py",
            ["InputTokenCountParams"],
        ),
        ("/v1/messages", f"{ANTHROPIC}beta/message_create_params.py", ["MessageCreateParamsBase"]),
        ("/v1/messages", f"{ANTHROPIC}message_create_params.py", ["MessageCreateParamsBase"]),
        (
            "/v1/messages/count_tokens",
            f"{ANTHROPIC}message_count_tokens_params.py",
            ["MessageCountTokensParams"],
        ),
        (
            "/api/generate",
            "ollama/_types.py",
            ["BaseRequest", "BaseStreamableRequest", "BaseGenerateRequest", "GenerateRequest"],
        ),
        (
            "/api/chat",
            "ollama/_types.py",
            ["BaseRequest", "BaseStreamableRequest", "BaseGenerateRequest", "ChatRequest"],
        ),
        ("/api/embed", "ollama/_types.py", ["BaseRequest", "EmbedRequest"]),
        ("/api/embeddings", "ollama/_types.py", ["BaseRequest", "EmbeddingsRequest"]),
        ("/api/pull", "ollama/_types.py", ["BaseRequest", "BaseStreamableRequest", "PullRequest"]),
        ("/api/push", "ollama/_types.py", ["BaseRequest", "BaseStreamableRequest", "PushRequest"]),
        ("/api/create", "ollama/_types.py", ["BaseRequest", "BaseStreamableRequest", "CreateRequest"]),
        ("/api/copy", "ollama/_types.py", ["CopyRequest"]),
        ("/api/show", "ollama/_types.py", ["BaseRequest", "ShowRequest"]),
    ],
)
def test_every_documented_field_has_its_place(path: str, module: str, classes: list[str]) -> None:
    """It is read, or harmless, or refused, or told of; one that a newer package adds is none of these."""
    fields = {name.removesuffix("_") for name in documented(module, *classes)}
    assert fields
    assert fields <= BODIES["POST", path].fields.keys() | HARMLESS | REFUSED.keys() | TOLD


def test_every_option_of_the_ollama_package_has_its_place() -> None:
    options = dict.fromkeys(documented("ollama/_types.py", "Options"), 0)
    options |= {"tfs_z": 1, "penalize_newline": True}
    known = BODIES["POST", "/api/chat"].fields
    assert len(options) > 25
    assert list(unread_fields({"options": options}, known)) == []
    for name, value in (("mirostat", 2), ("tfs_z", 0.5), ("penalize_newline", False)):
        with pytest.raises(UnsupportedError, match=rf"^options\.{name} is not supported"):
            list(unread_fields({"options": {name: value}}, known))
    assert list(unread_fields({"options": {"heat": 1, "top_k": None}}, known)) == ["options.heat"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_would_change_the_answer_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^{name} is not supported here"):
        list(unread_fields({name: "something"}, {}))
    for neutral in (*REFUSED[name], None):
        assert list(unread_fields({name: neutral}, {})) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {}),
        ("/api/embed", {"input": []}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": []}),
        ("/v1/rerank", {"query": "x", "documents": ["x"]}),
    ],
)
def test_an_answer_says_what_it_left_out(server: Running, path: str, body: dict[str, Any]) -> None:
    """On every endpoint, whatever becomes of the request otherwise."""
    body = {"model": "guide", **body}
    assert HEADER not in server.post(path, body | {"user": "me", "metadata": None}).headers
    reply = server.post(path, body | {"a, b\n": 1, "colour": "red"})
    assert reply.headers[HEADER] == "field a? b?, field colour"
    refused = server.post(path, body | {"logits_processors": ["x"]})
    assert (refused.status, b"logits_processors is not supported here" in refused.body) == (400, True)


def test_streams_say_it_too(server: Running) -> None:
    asked: dict[str, Any] = {"model": "guide", "messages": [{"role": "user", "content": "x"}], "stream": True}
    for path in ("/api/chat", "/v1/chat/completions"):
        reply = server.post(path, asked | {"tone": "kind", "thinking": {"budget_tokens": 3}})
        assert (reply.status, reply.headers[HEADER]) == (200, "field tone, field thinking")
    asked["max_tokens"] = 8
    reply = server.post("/v1/messages", asked | {"thinking": {"type": "enabled", "budget_tokens": 1024}})
    assert reply.headers[HEADER] == "field thinking.budget_tokens"
