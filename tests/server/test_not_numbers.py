"""Models whose numbers exceed floats: every API reports it, and names the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.errors import ModelError
from chaski.formats.gguf import open_gguf
from chaski.names import ModelName
from chaski.runner.channels.worker.client import Worker
from chaski.runner.generation.output_sequences import normalized
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.tiny_llama import write_tiny_llama
from tests.tiny_ranker import write_tiny_ranker

FAULT = "text 1 of 2, counted from 0, has values that are no finite numbers"
BAD = "Z"


def damaged(path: Path) -> Path:
    """Write the file with one token, `Z`, that gives NaN."""
    with open_gguf(path) as file:
        embeddings = file.tensors["token_embd.weight"]
        row = list(file.get("tokenizer.ggml.tokens", list[str])).index(BAD)
        size = embeddings.nbytes // embeddings.shape[0]
        place = embeddings.offset + row * size
    data = bytearray(path.read_bytes())
    data[place : place + size] = np.full(size // 4, np.nan, np.float32).tobytes()
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("no-numbers")
    vectors = write_tiny_llama(folder / "vectors.gguf", llama__pooling_type=1)
    return {"vectors": damaged(vectors), "ranker": damaged(write_tiny_ranker(folder / "ranker.gguf"))}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path]) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("no-numbers-models")
    for name, file in files.items():
        list(create(Store(folder), ModelName.parse(name), Recipe(sources=[file])))
    with running(Settings(address=SOMEWHERE, parallel=2), folder) as found:
        yield found


REQUESTS = {
    "/api/embed": {"model": "vectors", "input": ["a", BAD]},
    "/v1/embeddings": {"model": "vectors", "input": ["a", BAD]},
    "/v1/embeddings in base64": {"model": "vectors", "input": ["a", BAD], "encoding_format": "base64"},
    "/api/rerank": {"model": "ranker", "query": "a", "documents": ["a", BAD]},
    "/v1/rerank": {"model": "ranker", "query": "a", "documents": ["a", BAD]},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_server_says_which_text(server: Running, name: str) -> None:
    reply = server.post(name.split()[0], REQUESTS[name])
    assert reply.status == 500
    assert FAULT in reply.body.decode()


def test_a_single_text(server: Running) -> None:
    reply = server.post("/api/embeddings", {"model": "vectors", "prompt": BAD})
    assert (reply.status, "text 0 of 1" in reply.error) == (500, True)
    assert server.post("/api/embeddings", {"model": "vectors", "prompt": "a"}).status == 200


@pytest.mark.parametrize("normalize", [True, False])
def test_python_says_which_text(files: dict[str, Path], normalize: bool) -> None:
    with chaski.load(files["vectors"]) as model, Worker(files["vectors"]) as worker:
        for engine in (model, worker):
            with pytest.raises(ModelError, match=FAULT):
                engine.embed(["a", BAD], normalize=normalize)
            assert np.isfinite(engine.embed(["a", "b"], normalize=normalize)).all()


def test_lengths() -> None:
    """Zero vectors cannot be normalized; squares of large numbers exceed float32."""
    rows = normalized(np.array([[0, 0], [3, 4], [3e30, 4e30]], np.float32))
    np.testing.assert_allclose(rows, [[0, 0], [0.6, 0.8], [0.6, 0.8]], rtol=1e-6)
    assert rows.dtype == np.float32
