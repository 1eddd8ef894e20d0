"""One start of `chaski run` without a server looks its model up once, and opens its file once."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chaski.cli.main import chaski_command
from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.tiny_llama import write_tiny_llama

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<think></think>"
opened: Counter[str] = Counter()


@pytest.fixture(scope="module")
def counting() -> list[bool]:
    """Counts the files that Python opens while its only item is true; such a hook cannot be taken away.

    The backend reads weights by a descriptor of its own, which is no file of Python's.
    """
    is_on = [False]

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if is_on[0] and event == "open" and isinstance(arguments[0], str | Path) and arguments[1]:
            opened[str(arguments[0])] += 1

    sys.addaudithook(note)
    return is_on


@pytest.mark.parametrize(("template", "draft"), [(TEMPLATE, False), (None, False), (TEMPLATE, True)])
def test_a_start_opens_each_file_once(
    counting: list[bool], template: str | None, draft: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    file = write_tiny_llama(tmp_path / "a.gguf", chat_template=template)
    for _ in create(Store(store), ModelName.parse("tiny"), Recipe(sources=[file], template="{{ .Prompt }}")):
        pass
    if draft:
        small = write_tiny_llama(tmp_path / "b.gguf", memory=0.5)
        for _ in create(Store(store), ModelName.parse("small"), Recipe(sources=[small])):
            pass
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    opened.clear()
    counting[0] = True
    try:
        more = ["--draft", "small"] if draft else []
        result = CliRunner().invoke(chaski_command, ["run", "tiny", *more, "--num-predict", "1", "hello"])
    finally:
        counting[0] = False
    assert result.exit_code == 0, result.output
    of_store = {path: count for path, count in opened.items() if path.startswith(str(store))}
    manifests = [path for path in of_store if "manifests" in path]
    models = 2 if draft else 1
    assert len(manifests) == models
    blobs = sorted(
        (path for path in of_store if "blobs" in path), key=lambda path: -Path(path).stat().st_size
    )
    assert [of_store[path] for path in manifests] == [1] * models, "each is looked up once"
    assert [of_store[path] for path in blobs[:models]] == [1] * models, "its file is opened once"
    assert max(of_store.values()) == 1, of_store
