"""Models that Python pulls by name, and models that are pulled on loading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import chaski
from chaski.names import ModelName
from chaski.runner.loading import pulling
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.store.fake_registry import FakeRegistry
from tests.tiny_llama import write_tiny_llama


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as running:
        yield running


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def test_a_model_is_pulled_by_its_name(registry: FakeRegistry, tmp_path: Path) -> None:
    weights = write_tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    registry.put({"model": weights, "params": b"{}"})
    name = f"{registry.host}/me/model:1"
    with pytest.raises(chaski.RegistryError):
        chaski.pull(f"http://{name}")
    shares: list[float] = []
    chaski.pull(f"http://{name}", insecure=True, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    with chaski.load(name, threads=1) as model:
        assert model.generate("the", num_predict=3).text
        assert "model:1" in repr(model)
    with pytest.raises(chaski.ModelNotFoundError):
        chaski.pull(f"http://{registry.host}/me/other:1", insecure=True)


def test_only_names_of_hugging_face_are_pulled_when_they_are_loaded(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pulled: list[str] = []

    def pull(name: str, *, progress: bool) -> None:
        pulled.append(name)
        for _ in create(Store(models), ModelName.parse(name), Recipe(sources=[weights])):
            pass

    weights = write_tiny_llama(tmp_path / "tiny.gguf")
    monkeypatch.setattr(pulling, "pull", pull)
    for name in ("llama3.2:1b", "registry.example/me/model", str(tmp_path / "none.gguf")):
        with pytest.raises(chaski.ModelNotFoundError):
            chaski.load(name)
    assert not pulled
    for _ in range(2):
        with chaski.load("hf.co/me/tiny-GGUF:F32", threads=1) as model:
            assert model.generate("the", num_predict=3).text
    assert pulled == ["hf.co/me/tiny-GGUF:F32"]
    assert "is not in the store yet, and is pulled" in caplog.text


def test_a_link_of_a_file_finds_the_model_or_pulls_it(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[str] = []
    name = ModelName.parse("hf.co/a/b-GGUF:Q4_K_M")
    weights = write_tiny_llama(tmp_path / "tiny.gguf")

    def pull(wanted: str, *, progress: bool) -> None:
        pulled.append(wanted)
        list(create(Store(models), name, Recipe(sources=[weights])))

    monkeypatch.setattr(pulling, "pull", pull)
    for _ in range(2):
        link = "https://huggingface.co/a/b-GGUF/blob/main/b-Q4_K_M.gguf"
        assert pulling.find_or_pull(link).name == name
    assert pulled == [name.short]
