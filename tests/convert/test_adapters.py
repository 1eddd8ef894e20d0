"""Jina Embeddings 3 as published, with adapters for tasks, against the checkpoint of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import chaski
from chaski.cli.convert import command
from chaski.convert.convert import convert
from chaski.errors import ModelError
from chaski.formats.gguf import open_gguf
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import SafeTensor, open_checkpoint
from tests.convert.checkpoints import DATA, changed, expected, write_safetensors

TASKS = ["retrieval.query", "separation", "text-matching"]
RANK, ALPHA = 4, 2
ADAPTED = ("embeddings.weight", "Wqkv.weight", "out_proj.weight", "fc1.weight", "fc2.weight")


def factors(name: str, tensor: SafeTensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return two matrices for each task, in the order of multiplication."""
    random = np.random.default_rng(len(name))
    rows, columns = tensor.shape
    shapes = (len(TASKS), rows, RANK), (len(TASKS), RANK, columns)
    first, second = (random.standard_normal(shape).astype(np.float32) / 4 for shape in shapes)
    return first, second


def published(folder: Path) -> Path:
    """Write the checkpoint of transformers in the form of the release."""
    tensors: dict[str, tuple[str, Any]] = {}
    for name, tensor in open_checkpoint(DATA / "jina-bert-v3").items():
        outer = f"roberta.{name}"
        if not name.endswith(ADAPTED):
            tensors[outer] = (tensor.dtype, np.asarray(tensor.data))
            continue
        first, second = factors(name, tensor)
        letters = "AB" if "embeddings" in name else "BA"
        source = outer.replace(".weight", ".parametrizations.weight")
        tensors[f"{source}.original"] = (tensor.dtype, np.asarray(tensor.data))
        tensors[f"{source}.0.lora_{letters[0]}"] = ("F32", first)
        tensors[f"{source}.0.lora_{letters[1]}"] = ("F32", second)
    settings: dict[str, Any] = {
        "architectures": ["XLMRobertaModel"],
        "model_type": None,
        "rope_parameters": None,
    }
    settings |= {"rotary_emb_base": 20000.0, "position_embedding_type": "rotary"}
    settings |= {"lora_adaptations": TASKS, "lora_rank": RANK, "lora_alpha": ALPHA}
    changed("jina-bert-v3", folder, settings)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def merged(folder: Path, task: str) -> Path:
    """Write the checkpoint of transformers with the adapter of a task merged into its weights."""
    changed("jina-bert-v3", folder, {})
    tensors: dict[str, tuple[str, Any]] = {}
    for name, tensor in open_checkpoint(DATA / "jina-bert-v3").items():
        values = as_float32(tensor.data)
        if name.endswith(ADAPTED):
            first, second = (each[TASKS.index(task)] for each in factors(name, tensor))
            values = values + first @ second * np.float32(ALPHA / RANK)
        tensors[name] = ("F32", values)
    (folder / "model.safetensors").unlink()
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_merged(tmp_path: Path, task: str) -> None:
    convert(published(tmp_path / "own"), tmp_path / "own.gguf", "F32", task=task)
    convert(merged(tmp_path / "hf", task), tmp_path / "hf.gguf", "F32")
    own, hf = open_gguf(tmp_path / "own.gguf"), open_gguf(tmp_path / "hf.gguf")
    assert own.tensors.keys() == hf.tensors.keys()
    for name, tensor in hf.tensors.items():
        found, wanted = (each.data.view(np.float32) for each in (own.tensors[name], tensor))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6, err_msg=name)
    texts = [text for text, _ in expected("jina-bert-v3")["ids"]]
    with chaski.load(own.path, context=128) as one, chaski.load(hf.path, context=128) as other:
        np.testing.assert_allclose(one.embed(texts), other.embed(texts), rtol=0, atol=1e-5)


def test_without_a_task_adapters_are_left_out_and_named(tmp_path: Path) -> None:
    folder, out = published(tmp_path / "own"), tmp_path / "own.gguf"
    result = CliRunner().invoke(command, [str(folder), str(out), "--type", "F32"])
    assert f"left out; --task merges one: {', '.join(TASKS)}" in result.output
    with chaski.load(out, context=128) as model:
        found = np.asarray(
            model.embed([text for text, _ in expected("jina-bert-v3")["ids"]], normalize=False)
        )
    np.testing.assert_allclose(found, expected("jina-bert-v3")["vectors"], rtol=0, atol=1e-4)
    result = CliRunner().invoke(command, [str(folder), str(out), "--type", "F32", "--task", TASKS[1]])
    assert result.exit_code == 0
    assert "left out" not in result.output


def test_tasks_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no adapter for 'x'; tasks are retrieval\.query, separation"):
        convert(published(tmp_path / "own"), tmp_path / "out.gguf", task="x")
    with pytest.raises(ModelError, match="it has no adapters for tasks"):
        convert(DATA / "jina-bert-v3", tmp_path / "out.gguf", task="x")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    (tmp_path / "own" / "config.json").write_text(json.dumps(config | {"lora_rank": 3}))
    with pytest.raises(ModelError, match=r"lora_A' has shape .*config.json asks for"):
        convert(tmp_path / "own", tmp_path / "out.gguf", task=TASKS[0])
