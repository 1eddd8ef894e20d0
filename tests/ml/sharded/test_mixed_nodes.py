"""Nodes with and without a GPU compute a model together, with the bits of the cpu backend."""

from __future__ import annotations

from pathlib import Path

import pytest

import chaski
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend
from chaski.ml.backend import Backend, BackendOptions
from chaski.ml.sharded.serving import MemberServer
from tests.cuda.devices import BACKENDS
from tests.ml.sharded.members import KEY, Nodes, open_cpu
from tests.tiny_llama import write_tiny_llama


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("split", ["layers", "rows"])
def test_mixed_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, split: str) -> None:
    def open_gpu(options: BackendOptions) -> Backend:
        return open_backend(backend, options, CPUOptions(threads=1))

    key_file = tmp_path / "nodes.key"
    key_file.write_bytes(KEY)
    key_file.chmod(0o600)
    path = write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType.Q8_0)
    servers = [MemberServer("127.0.0.1", 0, KEY, opening) for opening in (open_cpu, open_gpu)]
    found = []
    for each in ("cpu", None):
        if each is None:
            Nodes(servers, key_file).use(monkeypatch, split, 2)
        with chaski.load(path, backend=each, context=128, parallel=2) as llm:
            logits = llm.logits([7, 9, 30, 4] * 20)
            answer = llm.generate("once upon", num_predict=12, temperature=0)
            found.append((logits.tobytes(), answer.token_ids))
    assert found[0] == found[1]
    for server in servers:
        server.close()
