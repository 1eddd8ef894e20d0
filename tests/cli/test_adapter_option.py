"""LoRA adapters on the command line: answering with them, and showing them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import chaski
from chaski.cli.adapter_options import read_adapters
from chaski.cli.main import chaski_command
from chaski.errors import OptionError
from chaski.formats.gguf import open_gguf
from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.adapters import adapted_names, random_adapter
from tests.tiny_llama import write_tiny_llama

PROMPT = "the thing"


def chaski_says(*arguments: str) -> Result:
    return CliRunner().invoke(chaski_command, arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a store with `tuned`, a model with an adapter; also its weights and adapters as files."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    with open_gguf(write_tiny_llama(tmp_path / "base.gguf")) as file:
        shapes = {name: file.tensors[name].shape for name in adapted_names(file)}
    for seed, name in enumerate(("one", "two"), 1):
        random_adapter(tmp_path / f"{name}.gguf", shapes, seed, rank=4, size=0.5)
    recipe = Recipe(sources=[tmp_path / "base.gguf"], adapters=[tmp_path / "one.gguf"])
    list(create(Store.default(), ModelName.parse("tuned"), recipe))
    return tmp_path


def test_run_answers_with_adapters(folder: Path) -> None:
    with chaski.load("base.gguf", adapters={"one": "one.gguf", "two": "two.gguf"}) as model:
        wanted = [
            model.generate(PROMPT, temperature=0, num_predict=8, adapter=adapter).text
            for adapter in (None, "one", "two", [("two", 0.5), ("one", 1.0)])
        ]
    assert len(set(wanted)) == 4
    with chaski.load("tuned") as model:
        assert model.generate(PROMPT, temperature=0, num_predict=8).text == wanted[1]
        assert model.generate(PROMPT, temperature=0, num_predict=8, adapter=[]).text == wanted[0]

    def run(model: str, *adapters: str) -> str:
        options = [part for adapter in adapters for part in ("--adapter", adapter)]
        given = ["--raw", "--temperature", "0", "--num-predict", "8", *options, model, PROMPT]
        result = chaski_says("run", *given)
        assert result.exit_code == 0, result.output
        return result.output.rstrip("\n")

    shown = [run("./base.gguf"), run("./base.gguf", "one.gguf"), run("./base.gguf", "./two.gguf=1")]
    shown.append(run("./base.gguf", "two.gguf=0.5", "tuned"))
    assert shown == [text.rstrip("\n") for text in wanted]
    assert run("tuned") == shown[1]
    result = chaski_says("run", "./base.gguf", "--adapter", "./none.gguf", "x")
    assert "none.gguf: no such adapter" in result.output
    assert "has no adapter" in chaski_says("run", "./base.gguf", "--adapter", "guide", "x").output


def test_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_adapters(["a", "b=0.5", "./c=x.gguf=-2"]) == [("a", 1.0), ("b", 0.5), ("./c=x.gguf", -2.0)]
    (tmp_path / "d=2").touch()
    assert read_adapters(["d=2", "e=f"]) == [("d=2", 1.0), ("e=f", 1.0)]
    with pytest.raises(OptionError, match="twice"):
        read_adapters(["a", "a=2"])


def test_what_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_HOST")
    table = (
        "  Adapter\n"
        "    architecture    llama\n"
        "    rank            4\n"
        "    alpha           32\n"
        "    matrices        14\n"
        "    types           F16\n"
    )
    shown = chaski_says("show", "./one.gguf").output
    assert shown.startswith(table)
    assert "blk.1.ffn_up.weight.lora_a" in chaski_says("show", "./one.gguf", "--tensors").output
    assert table in chaski_says("show", "tuned").output
    assert "\nADAPTER " in chaski_says("show", "tuned", "--modelfile").output
    assert "ADAPTER" not in chaski_says("show", "./base.gguf", "--modelfile").output
