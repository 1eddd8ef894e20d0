"""A mixture whose experts do not all fit into memory: `/api/ps` and `/metrics` show what layers read."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from chaski.cli.layout import size_in_bytes
from chaski.cli.main import chaski_command
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.backends import about_the_processor
from tests.server.conftest import SOMEWHERE
from tests.server.running import running

pytestmark = about_the_processor

MIXTURE = Path(__file__).parent.parent / "data" / "architectures" / "qwen3moe.gguf"


def test_hits_of_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "1")
    request = {"model": "mixture", "prompt": "a llama", "options": {"num_predict": 8, "seed": 1}}
    answers = []
    for memory in ("", "50KB"):
        monkeypatch.setenv("CHASKI_EXPERT_MEMORY", memory)
        folder = tmp_path / f"store-{memory}"
        for _ in create(Store(folder), ModelName.parse("mixture"), Recipe(sources=[MIXTURE])):
            pass
        with running(Settings(address=SOMEWHERE), folder) as server:
            answers.append(server.post("/api/generate", request | {"stream": False}).json["response"])
            (model,) = server.get("/api/ps").json["models"]
            monkeypatch.setenv("OLLAMA_HOST", server.url)
            shown = [
                CliRunner().invoke(chaski_command, words).stdout for words in (["ps"], ["top", "--once"])
            ]
            page = server.get("/metrics").body.decode()
    assert answers[0] == answers[1]
    layers = {each["layer"]: each for each in model["experts"]}
    assert all(0 < each["hits"] < each["requests"] and each["slots"] == 6 for each in layers.values())
    total = {name: sum(each[name] for each in layers.values()) for name in ("requests", "hits", "bytes_read")}
    share = f"{total['hits'] / total['requests']:.0%} of requests in memory"
    for text in shown:
        assert f"experts{':' if 'NAME' in text else '    '} {share}" in text, text
        assert f"{size_in_bytes(total['bytes_read'])} read" in " ".join(text.split())
    samples = {
        (sample.name, int(sample.labels["layer"])): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("chaski_expert_")
    }
    names = {"requests_total": "requests", "hits_total": "hits", "read_bytes_total": "bytes_read"}
    names |= {"slots": "slots", "gpu_hits_total": "gpu_hits", "gpu_slots": "gpu_slots"}
    assert samples == {
        (f"chaski_expert_{name}", layer): counts[field]
        for layer, counts in layers.items()
        for name, field in names.items()
    }
