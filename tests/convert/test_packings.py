"""The same tensors in other packings: next to a vision model, experts as one tensor, in floats or blocks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from chaski.convert.convert import convert
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.safetensors import open_checkpoint
from tests.convert.checkpoints import DATA, changed, write_safetensors, written

SEEING = ("vision_tower.x", "multi_modal_projector.y")
WRAPPED = {
    "gemma3": ("Gemma3ForConditionalGeneration", "model.language_model.", "model.", SEEING),
    "mistral3": ("Mistral3ForConditionalGeneration", "language_model.model.", "", SEEING),
    "llama4": (
        "Llama4ForConditionalGeneration",
        "language_model.model.",
        "",
        ("vision_model.x", "multi_modal_projector.y"),
    ),
    "qwen35": ("Qwen3_5ForConditionalGeneration", "model.language_model.", "model.", ("visual.x",)),
    "qwen35moe": ("Qwen3_5MoeForConditionalGeneration", "model.language_model.", "model.", ("visual.x",)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_text_model_of_one_with_vision(tmp_path: Path, name: str) -> None:
    architecture, prefix, outer, parts = WRAPPED[name]
    folder = tmp_path / name
    shutil.copytree(DATA / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], "text_config": config}))
    tensors = {
        prefix + name.removeprefix("model."): (tensor.dtype, np.array(tensor.data))
        for name, tensor in open_checkpoint(DATA / name).items()
    }
    for part in parts:
        tensors[f"{outer}{part}.weight"] = ("F32", np.zeros(1, np.float32))
    write_safetensors(folder / "model.safetensors", tensors)
    found, wanted = written(folder), written(changed(name, tmp_path / "plain" / name, {}))
    assert {name: bytes(tensor.data) for name, tensor in found.tensors.items()} == {
        name: bytes(tensor.data) for name, tensor in wanted.tensors.items()
    }
    assert found.metadata.keys() == wanted.metadata.keys()


@pytest.mark.parametrize("name", ["qwen3next", "qwen35moe"])
def test_experts_as_one_tensor(tmp_path: Path, name: str) -> None:
    """Gate above up of all experts in one tensor, as in published checkpoints of Qwen 3.5."""
    folder = changed(name, tmp_path / name, {})
    tensors = {
        name: (tensor.dtype, np.array(tensor.data)) for name, tensor in open_checkpoint(DATA / name).items()
    }
    for layer in range(3):
        block = f"model.layers.{layer}.mlp.experts."
        rows = {
            kind: np.stack([tensors.pop(f"{block}{index}.{kind}_proj.weight")[1] for index in range(4)])
            for kind in ("gate", "up", "down")
        }
        tensors[f"{block}gate_up_proj"] = ("BF16", np.concatenate([rows["gate"], rows["up"]], axis=1))
        tensors[f"{block}down_proj"] = ("BF16", rows["down"])
    write_safetensors(folder / "model.safetensors", tensors)
    wanted = written(changed(name, tmp_path / "apart", {}))
    assert {name: bytes(tensor.data) for name, tensor in written(folder).tensors.items()} == {
        name: bytes(tensor.data) for name, tensor in wanted.tensors.items()
    }


def test_experts_of_llama_4_as_tensors_of_their_own(tmp_path: Path) -> None:
    """Each expert's matrices are separate layers in quantized checkpoints of Llama 4."""
    folder = changed("llama4", tmp_path / "llama4", {})
    tensors = {}
    for name, tensor in open_checkpoint(DATA / "llama4").items():
        base, part = name.rsplit(".", 1)
        values = np.array(tensor.data)
        if not base.endswith(".experts"):
            tensors[name] = (tensor.dtype, values)
            continue
        parts = {"gate_proj": values, "up_proj": values} if part == "gate_up_proj" else {part: values}
        for other, columns in parts.items():
            half = columns.shape[-1] // len(parts)
            start = half if other == "up_proj" else 0
            for expert, matrix in enumerate(columns[..., start : start + half]):
                tensors[f"{base}.{expert}.{other}.weight"] = (tensor.dtype, np.ascontiguousarray(matrix.T))
    write_safetensors(folder / "model.safetensors", tensors)
    found, wanted = written(folder), written(changed("llama4", tmp_path / "plain", {}))
    assert {name: bytes(tensor.data) for name, tensor in found.tensors.items()} == {
        name: bytes(tensor.data) for name, tensor in wanted.tensors.items()
    }


def test_gpt_oss_in_floats_has_the_same_experts(tmp_path: Path) -> None:
    """Fine-tuned checkpoints lack blocks: matrices are transposed, and columns of gate and up alternate."""
    packed = written(changed("gpt-oss", tmp_path / "packed", {}))
    experts = {
        name: dequantize(tensor.data, tensor.type, tensor.shape)
        for name, tensor in packed.tensors.items()
        if "_exps.weight" in name
    }
    floats = changed("gpt-oss", tmp_path / "floats", {"quantization_config": None})
    tensors = {
        name: (tensor.dtype, np.array(tensor.data))
        for name, tensor in open_checkpoint(DATA / "gpt-oss").items()
        if not name.endswith(("_blocks", "_scales"))
    }
    for layer in range(2):
        gate, up, down = (experts[f"blk.{layer}.ffn_{part}_exps.weight"] for part in ("gate", "up", "down"))
        pairs = np.stack([gate, up], axis=2).reshape(len(gate), -1, gate.shape[2])
        for name, values in (("gate_up_proj", pairs), ("down_proj", down)):
            turned = np.ascontiguousarray(values.swapaxes(1, 2), np.float32)
            tensors[f"model.layers.{layer}.mlp.experts.{name}"] = ("F32", turned)
    write_safetensors(floats / "model.safetensors", tensors)
    found = written(floats)
    assert found.tensors.keys() == packed.tensors.keys()
    for name, values in experts.items():
        tensor = found.tensors[name]
        assert tensor.type.name == "F32"
        np.testing.assert_array_equal(dequantize(tensor.data, tensor.type, tensor.shape), values)


def test_packed_experts_keep_their_type_and_the_rest_has_the_wanted_one(tmp_path: Path) -> None:
    convert(DATA / "gpt-oss", tmp_path / "out.gguf", "Q8_0")
    types = {name: tensor.type.name for name, tensor in open_gguf(tmp_path / "out.gguf").tensors.items()}
    assert types["blk.0.ffn_gate_exps.weight"] == types["blk.1.ffn_down_exps.weight"] == "MXFP4"
    assert types["blk.0.attn_q.weight"] == "Q8_0"
    assert types["blk.0.attn_sinks.weight"] == types["blk.0.ffn_gate_exps.bias"] == "F32"
