"""A model that only llama.cpp has, over HTTP, with a stand-in for the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.runner.loading.test_engine_choice import write_misfit
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

FAKE = Path(__file__).parents[1] / "runner" / "service" / "llamacpp" / "fake"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """`foreign`, of an architecture without a file here; `variant`, with a tensor that ours does not have;
    and `both`, which ours could compute as well."""
    store = Store(tmp_path / "models")
    weights = write_tiny_llama(
        tmp_path / "f.gguf", general__architecture="foreign", foreign__context_length=256
    )
    for _ in create(store, ModelName.parse("foreign"), Recipe(sources=[weights])):
        pass
    weights = write_misfit(tmp_path / "v.gguf", "blk.0.attn_q_gate.weight", (2, 64))
    for _ in create(store, ModelName.parse("variant"), Recipe(sources=[weights])):
        pass
    weights = write_tiny_llama(tmp_path / "t.gguf")
    for _ in create(store, ModelName.parse("both"), Recipe(sources=[weights], parameters={"num_predict": 4})):
        pass
    return tmp_path / "models"


@pytest.fixture
def server(models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("CHASKI_THREADS", "1")
    with running(Settings(address=SOMEWHERE), models) as server:
        yield server


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKE))


def engines(server: Running) -> dict[str, str]:
    return {model["name"]: model["engine"] for model in server.ask("GET", "/api/ps").json["models"]}


@pytest.mark.parametrize("model", ["foreign", "variant"])
def test_it_answers_and_says_who_computes_it(package: None, server: Running, model: str) -> None:
    assert server.post("/api/show", {"model": model}).json["engine"] == "llama.cpp"
    answer = server.post(
        "/api/generate", {"model": model, "prompt": "abc", "raw": True, "stream": False}
    ).json
    assert (answer["response"], answer["prompt_eval_count"], answer["done_reason"]) == ("cba", 4, "stop")
    assert engines(server) == {f"{model}:latest": "llama.cpp"}


def test_a_request_may_choose(package: None, server: Running) -> None:
    ask = {"model": "both", "prompt": "abc", "raw": True, "stream": False}
    for engine in ("native", "llama.cpp", None):
        options = {} if engine is None else {"engine": engine}
        answer = server.post("/api/generate", {**ask, "options": options}).json
        assert (answer["response"] == "cba") == (engine == "llama.cpp")
        assert engines(server) == {"both:latest": engine or "native"}
    refusal = server.post("/api/generate", {**ask, "options": {"engine": "steam"}})
    assert refusal.status == 400
    assert "it must be native or llama.cpp" in refusal.error


@pytest.mark.parametrize(
    ("model", "gap"), [("foreign", "'foreign'"), ("variant", "blk.0.attn_q_gate.weight")]
)
def test_without_the_package_the_error_names_it(server: Running, models: Path, model: str, gap: str) -> None:
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        refusal = server.post("/api/generate", {"model": model, "prompt": "abc", "stream": False})
        assert refusal.status == (400 if model == "foreign" else 500)
        assert gap in refusal.error
        assert "pip install 'chaski[llama-cpp]'" in refusal.error
        assert str(models) not in refusal.error
    else:
        pytest.skip("xllamacpp is installed")
