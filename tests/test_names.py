from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaski import names
from chaski.errors import ModelNotFoundError


@pytest.fixture(autouse=True)
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the models `one` and `two`, and an empty folder to be in."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "one.gguf").touch()
    (folder / "two.gguf").touch()
    monkeypatch.setattr(names, "_BUNDLED", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_bundled_models_by_name(bundled: Path) -> None:
    assert names.bundled_models() == ["one", "two"]
    assert names.resolve("two") == bundled / "two.gguf"


def test_files_by_path(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "sha256-0f").touch()
    for path in ("model.gguf", "./model.gguf", "sha256-0f"):
        assert names.resolve(path) == Path(path)
    assert names.resolve(tmp_path / "model.gguf") == tmp_path / "model.gguf"


def test_a_file_called_like_a_bundled_model(tmp_path: Path, bundled: Path) -> None:
    (tmp_path / "one").touch()
    assert names.resolve("one") == bundled / "one.gguf"
    assert names.resolve("./one") == Path("one")
    assert names.resolve(Path("one")) == Path("one")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("three", "no file 'three' and no model of that name; models here: one, two"),
        ("one.gguf", "no file 'one.gguf' and no model of that name; models here: one, two"),
        ("package", "package is a folder, not a model file; it holds one.gguf, two.gguf"),
        ("/", "/ is a folder, not a model file"),
    ],
)
def test_what_is_not_there(model: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=re.escape(message) + "$"):
        names.resolve(model)
