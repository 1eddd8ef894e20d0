"""Architectures that only llama.cpp supports: tiny random files, and greedy answers of plain xllamacpp.

The keys and tensors of each are in `tests/data/llama_cpp_architectures.json`, from llama.cpp itself
(`tools/fixtures/probe_llama_cpp.py`). Architectures that have become native are skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.model.registry import ARCHITECTURES
from chaski.names import ModelName
from chaski.runner.channels.worker.client import Worker
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.oracle
pytest.importorskip("xllamacpp")

ROOT = Path(__file__).parents[4]
TABLE = json.loads((ROOT / "tests" / "data" / "llama_cpp_architectures.json").read_text())
NAMES = sorted(TABLE.keys() - ARCHITECTURES.keys())
PROMPT, COUNT = "HELLO WORLD", 16
GREEDY: dict[str, Any] = {
    "temperature": 0,
    "num_predict": COUNT,
    "repeat_penalty": 1.0,
    "ignore_eos": True,
    "seed": 1,
}
PRINTABLE = slice(0x21, 0x7F)


def write_random(path: Path, name: str, tokenizer: dict[str, Any]) -> Path:
    """Write a file of an architecture that generates only complete characters."""
    entry = TABLE[name]
    metadata = {"general.architecture": name, **tokenizer}
    for key, value in entry["metadata"].items():
        full = key.removeprefix("/") if key.startswith("/") else f"{name}.{key}"
        is_floats = isinstance(value, list) and any(isinstance(each, float) for each in value)
        metadata[full] = np.array(value, np.float32) if is_floats else value
    tensors = {}
    for pattern, shape in entry["tensors"].items():
        for layer in "01" if "*" in pattern else "0":
            each = pattern.replace("*", layer)
            tensors[each] = (values(name, each, shape[::-1]), QuantType.F32)
    write_gguf(path, metadata, tensors)
    return path


def values(architecture: str, name: str, shape: list[int]) -> np.ndarray:
    random = np.random.default_rng(zlib.crc32(f"{architecture} {name}".encode()))
    found = random.standard_normal(shape).astype(np.float32)
    if name in ("token_embd.weight", "output.weight"):
        said = np.zeros_like(found)
        said[PRINTABLE] = found[PRINTABLE]
        return said
    if name.endswith("ssm_a"):
        return -np.exp(found)
    if "norm" in name and name.endswith(".weight"):
        return 1 + found / 10
    return found / shape[-1] ** 0.5 if len(shape) > 1 else found / 10


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("architectures")
    with open_gguf(write_tiny_llama(folder / "tiny.gguf")) as tiny:
        tokenizer = {key: value for key, value in tiny.metadata.items() if key.startswith("tokenizer.")}
    return {name: write_random(folder / f"{name}.gguf", name, tokenizer) for name in NAMES}


@pytest.fixture(scope="module")
def expected(files: dict[str, Path]) -> dict[str, str]:
    script = Path(__file__).with_name("plain_answers.py")
    command = [sys.executable, str(script), PROMPT, str(COUNT), *map(str, files.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(files, json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def server(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("store")
    for name, path in files.items():
        for _ in create(Store(folder), ModelName.parse(name), Recipe(sources=[path])):
            pass
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHASKI_THREADS", "1")
        with running(Settings(address=SOMEWHERE, max_loaded=1), folder) as found:
            yield found


@pytest.mark.parametrize("name", NAMES)
def test_greedy_answers_are_those_of_xllamacpp(
    name: str, files: dict[str, Path], expected: dict[str, str], server: Running
) -> None:
    assert len(expected[name]) == COUNT
    with Worker(files[name], threads=1) as worker:
        info = worker.info()
        assert info.engine == "llama.cpp"
        assert f"architecture '{name}'" in info.engine_reason
        assert worker.generate(PROMPT, **GREEDY).text == expected[name]
        assert worker.generate(PROMPT, **GREEDY).text == expected[name], "from the cache"
        chosen = worker.generate("x", choice=["yes", "no"], temperature=0).text
        assert chosen in {"yes", "no"} or len(set(expected[name])) == 1, "its numbers are none"
        full = worker.generate(PROMPT, **{**GREEDY, "num_predict": 600, "shift": False})
        assert full.done_reason == "length"
        assert full.done.shifted_tokens == 0
    body = {"model": name, "prompt": PROMPT, "raw": True, "stream": False, "options": GREEDY}
    answer = server.post("/api/generate", body).json
    assert answer["response"] == expected[name]
    assert server.ask("GET", "/api/ps").json["models"][0]["engine"] == "llama.cpp"
    assert server.post("/api/show", {"model": name}).json["engine"] == "llama.cpp"
