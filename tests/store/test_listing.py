"""The list of models as `/api/tags` shows it, and the bytes that deletions free."""

from __future__ import annotations

import logging
import os
from datetime import datetime
from pathlib import Path

import pytest

from chaski.names import ModelName
from chaski.store.listing import Summary, details_of, listed, local_time
from chaski.store.model import StoredConfig
from chaski.store.store import Entry, Store
from tests.store.stores import CONFIG, put_by_hand

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Make a store with two models that share their weights; `one` is older."""
    monkeypatch.delenv("OLLAMA_NOPRUNE", raising=False)
    put_by_hand(tmp_path, f"{LIBRARY}/one/latest", {"model": b"weights", "system": b"be brief"})
    put_by_hand(tmp_path, f"{LIBRARY}/two/q4", {"model": b"weights"}, b'{"model_format":"other"}')
    os.utime(tmp_path / "manifests" / LIBRARY / "one" / "latest", (1_000_000_000, 1_000_000_000))
    return Store(tmp_path)


def freed(store: Store) -> dict[str, int]:
    entries = store.entries()
    return {name.short: num_bytes for name, num_bytes in store.freed_bytes(entries).items()}


def test_the_fields_of_a_model(store: Store) -> None:
    two, one, guide = listed(store)
    entry = store.entry(ModelName.parse("one"))
    assert one == {
        "name": "one:latest",
        "model": "one:latest",
        "modified_at": local_time(1_000_000_000),
        "size": 7 + 8 + len(CONFIG),
        "digest": entry.digest.hex,
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "llama",
            "families": None,
            "parameter_size": "95.7K",
            "quantization_level": "F32",
        },
        "freed_bytes": 8 + len(CONFIG),
    }
    assert (two["name"], two["details"]["format"]) == ("two:q4", "other")
    assert (guide["name"], guide["bundled"]) == ("guide:latest", True)
    assert "freed_bytes" not in guide
    assert "bundled" not in one


def test_a_summary_adds_what_only_the_files_tell(store: Store) -> None:
    def summary(entry: Entry) -> Summary:
        return Summary(("completion", "vision"), 4096, 64) if entry.name.model == "one" else Summary()

    two, one, _ = listed(store, summary)
    assert one["capabilities"] == ["completion", "vision"]
    assert (one["details"]["context_length"], one["details"]["embedding_length"]) == (4096, 64)
    assert two["capabilities"] == []
    assert "context_length" not in two["details"]
    families = StoredConfig(model_families=("llama", "clip"))
    assert details_of(families)["families"] == ["llama", "clip"]


def test_a_model_without_its_description_is_left_out(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.blobs.remove(store.entry(ModelName.parse("two:q4")).manifest.config.digest)
    with caplog.at_level(logging.WARNING):
        assert [each["name"] for each in listed(store)] == ["one:latest", "guide:latest"]
    (message,) = caplog.messages
    assert message.startswith("two:q4 is left out: blob ")
    assert message.endswith(" is missing; pull or create its model again")


def test_times_have_the_offset_of_the_zone() -> None:
    text = local_time(1_000_000_000.25)
    assert datetime.fromisoformat(text).timestamp() == 1_000_000_000.25
    assert datetime.fromisoformat(text).tzinfo is not None
    assert text[19:26] == ".250000"


def test_a_deletion_frees_what_it_says(store: Store) -> None:
    def used() -> int:
        return sum(path.stat().st_size for path in store.blobs.folder.iterdir())

    assert freed(store).keys() == {"one:latest", "two:q4"}
    for name in ("one", "two:q4"):
        before, expected = used(), freed(store)[ModelName.parse(name).short]
        store.remove(ModelName.parse(name))
        assert before - used() == expected > 0


def test_a_deletion_frees_no_bytes_of_others(store: Store, tmp_path: Path) -> None:
    before = freed(store)["one:latest"]
    system = store.entry(ModelName.parse("one")).manifest.layers[1]
    os.link(store.blobs.path(system.digest), tmp_path / "another name")
    assert freed(store)["one:latest"] == before - system.size
    store.blobs.remove(system.digest)
    assert freed(store)["one:latest"] == before - system.size


def test_while_blobs_are_kept_no_bytes_are_freed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_NOPRUNE", "1")
    assert freed(store) == {"one:latest": 0, "two:q4": 0}
    monkeypatch.delenv("OLLAMA_NOPRUNE")
    put_by_hand(store.root, f"{LIBRARY}/bad/latest", {}).write_text("?")
    assert freed(store) == {"one:latest": 0, "two:q4": 0}
