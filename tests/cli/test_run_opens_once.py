"""`chaski run` without a server looks its model up once, and opens its file once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.tiers import long_after
from tests.tiny_llama import write_tiny_llama

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<think></think>"


@pytest.mark.parametrize(
    ("template", "draft"), long_after(1, [(TEMPLATE, True), (TEMPLATE, False), (None, False)])
)
def test_a_start_opens_each_file_once(template: str | None, draft: bool, tmp_path: Path) -> None:
    store = tmp_path / "store"
    file = write_tiny_llama(tmp_path / "a.gguf", chat_template=template)
    for _ in create(Store(store), ModelName.parse("tiny"), Recipe(sources=[file], template="{{ .Prompt }}")):
        pass
    if draft:
        small = write_tiny_llama(tmp_path / "b.gguf", memory=0.5)
        for _ in create(Store(store), ModelName.parse("small"), Recipe(sources=[small])):
            pass
    counts = tmp_path / "opened.json"
    command = ["run", "tiny", *(["--draft", "small"] if draft else []), "--num-predict", "1", "hello"]
    result = subprocess.run(
        [sys.executable, "-m", "tests.cli.opened_files", counts, *command],
        env={**os.environ, "OLLAMA_MODELS": str(store)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    opened = json.loads(counts.read_text())
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
