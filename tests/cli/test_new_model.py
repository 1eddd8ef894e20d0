"""`chaski new-model`: its files run as they are."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaski.cli import new_model
from chaski.cli.main import chaski_command
from chaski.convert.config import Config
from chaski.errors import OptionError
from chaski.model.arch import llama

FOLDERS = ("chaski/model/arch", "chaski/convert/families", "tests/data/families")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_the_files_compute_what_the_other_family_computes(root: Path) -> None:
    model, converter, configurations = new_model.write_family(root, "new-one", "llama")
    assert model == root / "chaski/model/arch/new_one.py"
    found = runpy.run_path(str(model))
    assert issubclass(found["Model"], llama.Model)
    assert found["ARCHITECTURE"].name == "new-one"
    found = runpy.run_path(str(converter))
    assert found["CHECKPOINTS"] == ("NewOneForCausalLM",)
    tables = tomllib.loads(configurations.read_text())
    assert len(tables) == 3
    more = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0}
    for settings in tables.values():
        entries = found["FAMILY"].metadata(Config(root / "config.json", {**settings, **more}))
        assert entries["embedding_length"] == settings["hidden_size"]


@pytest.mark.parametrize(
    ("name", "like", "message"),
    [
        ("../x", "llama", "cannot be a name"),
        ("new", "nothing", "--like 'nothing' is not an architecture"),
        ("smollm3", "llama", "exists already"),
        ("new", "mistral3", ""),
    ],
)
def test_what_cannot_be_written(root: Path, name: str, like: str, message: str) -> None:
    (root / FOLDERS[0] / "smollm3.py").write_text("")
    if message:
        with pytest.raises(OptionError, match=message):
            new_model.write_family(root, name, like)
    else:
        assert len(new_model.write_family(root, name, like)) == 3


def test_outside_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_model, "_ROOT", tmp_path)
    result = CliRunner().invoke(chaski_command, ["new-model", "new"])
    assert result.exit_code == 1
    assert "is no checkout" in result.stderr


def test_the_command_names_what_it_wrote(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_model, "_ROOT", root)
    result = CliRunner().invoke(chaski_command, ["new-model", "new", "--checkpoint", "NewLM"])
    assert result.exit_code == 0, result.output
    assert "wrote chaski/model/arch/new.py\n" in result.output
    assert 'CHECKPOINTS = ("NewLM",)' in (root / FOLDERS[1] / "new.py").read_text()
    assert "python -m tools.fixtures.make_families new" in result.output
