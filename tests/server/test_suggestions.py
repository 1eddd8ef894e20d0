"""What the page asks before a pull, and what `/api/tags` says of each model for its picker and dialogs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from chaski.store.suggested import suggested_models
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.server.thinker import TEMPLATE
from tests.tiny_llama import write_tiny_llama


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("suggestions")
    files = {
        "talker": write_tiny_llama(folder / "talker.gguf", chat_template=TEMPLATE),
        "vectors": write_tiny_llama(folder / "vectors.gguf", llama__pooling_type=1),
        "ranks": write_tiny_llama(folder / "ranks.gguf", llama__pooling_type=4),
    }
    for name, file in files.items():
        list(create(Store(folder), ModelName.parse(name), Recipe(sources=[file])))
    with running(Settings(address=SOMEWHERE), folder, Script().open) as found:
        yield found


def listed(server: Running) -> dict[str, dict[str, object]]:
    return {model["name"].removesuffix(":latest"): model for model in server.get("/api/tags").json["models"]}


def test_tags_name_the_capabilities_of_each_model(server: Running) -> None:
    models = listed(server)
    assert (
        models["talker"]["capabilities"] == server.post("/api/show", {"model": "talker"}).json["capabilities"]
    )
    assert {"completion", "tools"} <= set(models["talker"]["capabilities"])  # type: ignore[call-overload]
    assert models["vectors"]["capabilities"] == ["embedding"]
    assert models["ranks"]["capabilities"] == ["rerank"]
    assert models["guide"]["bundled"] is True
    assert "bundled" not in models["talker"]


def test_tags_tell_what_a_deletion_frees(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Store = server.services.catalog.store
    before = listed(server)["talker"]
    assert before["freed_bytes"] == before["size"]
    server.post("/api/copy", {"source": "talker", "destination": "twin"})
    assert [listed(server)[name]["freed_bytes"] for name in ("talker", "twin")] == [0, 0]
    changed = {"model": "brief", "from": "talker", "system": "Be brief.", "stream": False}
    server.post("/api/create", changed)
    brief = listed(server)["brief"]["freed_bytes"]
    assert isinstance(brief, int)
    assert 0 < brief < 1000  # its own system prompt and manifest data, not the weights

    held = sum(path.stat().st_size for path in store.blobs.folder.iterdir())
    server.ask("DELETE", "/api/delete", {"model": "brief"})
    assert held - sum(path.stat().st_size for path in store.blobs.folder.iterdir()) == brief
    server.ask("DELETE", "/api/delete", {"model": "twin"})
    assert listed(server)["talker"]["freed_bytes"] == before["size"]

    # A hard link to a file outside the store frees nothing, and neither does a store that keeps all blobs.
    (weights,) = store.entry(ModelName.parse("talker")).manifest.of_kind("model")
    os.link(store.blobs.path(weights.digest), store.root / "elsewhere.gguf")
    assert listed(server)["talker"]["freed_bytes"] == int(str(before["size"])) - weights.size
    (store.root / "elsewhere.gguf").unlink()
    monkeypatch.setenv("OLLAMA_NOPRUNE", "1")
    assert listed(server)["talker"]["freed_bytes"] == 0
    assert "freed_bytes" not in listed(server)["guide"]


@pytest.mark.parametrize(
    ("text", "name", "is_stored"),
    [
        ("ollama run llama3.2", "llama3.2:latest", False),
        ("https://huggingface.co/a/b-GGUF/blob/main/b-Q4_K_M.gguf", "hf.co/a/b-GGUF:Q4_K_M", False),
        ("chaski run TALKER", "TALKER:latest", True),
        ("guide", "guide:latest", True),
        ("ollama run http://localhost:5000/me/x", "http://localhost:5000/me/x:latest", False),
    ],
)
def test_the_name_in_a_pasted_text(server: Running, text: str, name: str, is_stored: bool) -> None:
    assert server.post("/api/name", {"text": text}).json == {"model": name, "is_stored": is_stored}


def test_a_text_without_a_name(server: Running) -> None:
    for text, why in (
        ("which model can see?", "names no model"),
        ("a/b/c/d", "more parts"),
        (" ", "no model"),
    ):
        reply = server.post("/api/name", {"text": text})
        assert (reply.status, why in reply.error) == (400, True)


def test_pulls_take_pasted_commands_and_links(server: Running) -> None:
    """The registry is not reached: the name alone is refused."""
    reply = server.post("/api/pull", {"model": "https://huggingface.co/datasets/a/b"})
    assert (reply.status, "the link of a model" in reply.error) == (400, True)


def test_suggestions_tell_what_fits(server: Running) -> None:
    told = server.get("/api/suggestions").json
    assert told["date"] == suggested_models().date
    assert [each["name"] for each in told["models"]] == [each.name for each in suggested_models().models]
    assert told["available"]["cpu"] > 0
    room = sum(told["available"].values())
    for each in told["models"]:
        assert each["fits"] == (each["memory"] <= room)
        assert each["size"] < each["memory"]
        assert not each["is_stored"]
    server.post("/api/copy", {"source": "talker", "destination": "gemma3:1b"})
    stored = [each["name"] for each in server.get("/api/suggestions").json["models"] if each["is_stored"]]
    server.ask("DELETE", "/api/delete", {"model": "gemma3:1b"})
    assert stored == ["gemma3:1b"]
