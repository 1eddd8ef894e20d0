from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from chaski.store.blob_names import with_model_names
from tests.store.stores import put_by_hand


def test_blobs_are_named_by_their_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    for name in ("library/one/latest", "me/two/q4"):
        put_by_hand(tmp_path, f"registry.ollama.ai/{name}", {"model": b"weights"})
    blob = f"sha256-{hashlib.sha256(b'weights').hexdigest()}"
    assert with_model_names(f"{blob} was made for 8 tokens") == "one was made for 8 tokens"
    assert with_model_names(f"{tmp_path}/blobs/{blob}: truncated") == "one: truncated"
    assert with_model_names(f"'{blob}' ends", ["run", "me/two:q4", "a b"]) == "'me/two:q4' ends"
    other = f"sha256-{'0' * 64} is unknown"
    assert with_model_names(other) == other
