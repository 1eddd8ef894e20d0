"""The isolation between requests of different keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.running import running


def test_keys_share_no_prefix_cache(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time to the first token would reveal other users' prompts."""
    monkeypatch.setenv("CHASKI_THREADS", "1")
    settings = Settings(address=SOMEWHERE, parallel=4, api_keys=("hers", "his"))
    asked = {"model": "guide", "prompt": "how do I use fewer cores?", "stream": False}
    asked["options"] = {"temperature": 0, "num_predict": 4}
    with running(settings, models) as server:
        first = server.post("/api/generate", asked, Authorization="Bearer hers").json
        other = server.post("/api/generate", asked, Authorization="Bearer his").json
        again = server.post("/api/generate", asked, **{"x-api-key": "hers"}).json
    assert "prompt_cached_count" not in first.keys() | other.keys()
    assert again["prompt_cached_count"] == again["prompt_eval_count"] - 1
    assert first["response"] == other["response"] == again["response"]
