from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import chaski
from chaski import errors

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", chaski.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(chaski, name)
    if isinstance(value, type):
        assert value.__name__ == name
        assert value.__doc__


def test_all_errors_are_public_and_are_one_tree() -> None:
    assert set(errors.__all__) < set(chaski.__all__)
    assert all(issubclass(getattr(errors, name), chaski.ChaskiError) for name in errors.__all__)


@pytest.mark.parametrize("name", ["Engine", "import_module_"])
def test_names_that_are_not_there(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'chaski' has no attribute '{name}'"):
        getattr(chaski, name)


def test_importing_chaski_is_light() -> None:
    program = "import sys, chaski; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    modules = set(loaded.stdout.split())
    assert {module for module in modules if module.startswith("chaski")} == {"chaski", "chaski.errors"}
    assert not modules & {"numpy", "click", "jinja2", "tokenizers"}


def test_dir_shows_the_public_names() -> None:
    assert dir(chaski) == sorted(chaski.__all__)
