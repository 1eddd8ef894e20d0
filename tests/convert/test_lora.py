"""PEFT's LoRA adapters as GGUF: on a converted base they equal the merged weights, tensor by tensor."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import chaski
from chaski.cli.convert import command
from chaski.convert.adapter import convert_adapter
from chaski.convert.convert import convert
from chaski.errors import ChaskiError, ModelError, ModelNotFoundError, UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import open_checkpoint
from tests.convert.checkpoints import DATA, changed, write_safetensors

Settings = dict[str, Any]

LINEAR = {
    "internlm2": ("wqkv", "wo", "w1", "w2", "w3"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "qwen35": ("in_proj_qkv", "in_proj_z", "in_proj_b", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj"),
    "qwen3next": ("q_proj", "o_proj"),
    "lfm2": ("q_proj", "k_proj", "out_proj", "w1", "w2", "w3"),
    "gpt-oss": ("q_proj", "k_proj", "v_proj", "o_proj"),
}
USUAL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FROM_FILES: tuple[str, ...] = (
    "gemma",
    "gemma2",
    "gemma3",
    "granite",
    "internlm2",
    "llama2",
    "llama3",
    "mistral",
    "mistral3",
)
FROM_FILES += ("gpt-oss", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe")
FAMILIES = sorted({*LINEAR, *FROM_FILES})


def matrices(name: str) -> dict[str, NDArray[np.float32]]:
    """Return the weights of linear layers by module name."""
    endings = tuple(f".{each}.weight" for each in LINEAR.get(name, USUAL))
    found = {
        key.removesuffix(".weight"): as_float32(tensor.data)
        for key, tensor in open_checkpoint(DATA / name).items()
        if key.endswith(endings) and len(tensor.shape) == 2 and "mtp." not in key and ".experts." not in key
    }
    assert found
    return found


def write_adapter(
    folder: Path, name: str, settings: Settings | None = None, ranks: dict[str, int] | None = None
) -> dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Write a PEFT adapter for all linear layers; return A and B of each module."""
    folder.mkdir()
    random, factors, tensors = np.random.default_rng(7), {}, {}
    values: Settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none", "use_dora": False}
    for module, weight in matrices(name).items():
        rank = next((rank for end, rank in (ranks or {}).items() if module.endswith(end)), 4)
        rows, columns = weight.shape
        first, second = (
            random.standard_normal(shape).astype(np.float32) for shape in ((rank, columns), (rows, rank))
        )
        factors[module] = first, second
        tensors[f"base_model.model.{module}.lora_A.weight"] = "F32", first
        tensors[f"base_model.model.{module}.lora_B.weight"] = "F32", second
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps(values | (settings or {})))
    return factors


def merged(folder: Path, name: str, deltas: dict[str, NDArray[np.float32]]) -> GGUFFile:
    """Convert the checkpoint with the merged weights."""
    changed(name, folder, {})
    tensors: dict[str, tuple[str, Any]] = {}
    for key, tensor in open_checkpoint(DATA / name).items():
        if tensor.is_float:
            values = as_float32(tensor.data)
            tensors[key] = "F32", values + deltas.get(key.removesuffix(".weight"), np.float32(0))
        else:
            tensors[key] = tensor.dtype, np.asarray(tensor.data)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    write_safetensors(folder / "model.safetensors", tensors)
    convert(folder, folder / "out.gguf", "F32")
    return open_gguf(folder / "out.gguf")


def floats(file: GGUFFile, name: str) -> NDArray[np.float32]:
    tensor = file.tensors[name]
    return tensor.data.view(np.float32).reshape(tensor.shape)


def check(base: GGUFFile, adapter: GGUFFile, wanted: GGUFFile) -> None:
    """Apply the adapter like its readers, and compare with the merged weights."""
    alpha, used = adapter.get("adapter.lora.alpha", float), set()
    for name, tensor in wanted.tensors.items():
        if tensor.type.name != "F32":
            continue
        found = floats(base, name)
        if f"{name}.lora_a" in adapter.tensors:
            first, second = (floats(adapter, f"{name}.lora_{letter}") for letter in "ab")
            assert first.shape[0] == second.shape[1]
            found = found + alpha / second.shape[1] * (second @ first)
            used |= {f"{name}.lora_a", f"{name}.lora_b"}
        np.testing.assert_allclose(found, floats(wanted, name), rtol=0, atol=2e-5, err_msg=name)
    assert used == set(adapter.tensors)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_adapter_does_what_merged_weights_do(name: str, tmp_path: Path) -> None:
    factors = write_adapter(tmp_path / "adapter", name)
    deltas = {module: second @ first * np.float32(6 / 4) for module, (first, second) in factors.items()}
    convert(DATA / name, tmp_path / "base.gguf", "F32")
    summary = convert_adapter(tmp_path / "adapter", tmp_path / "adapter.gguf", DATA / name, "F32")
    base, adapter = open_gguf(tmp_path / "base.gguf"), open_gguf(tmp_path / "adapter.gguf")
    assert adapter.get("general.type", str) == "adapter"
    assert adapter.get("adapter.type", str) == "lora"
    assert adapter.architecture == base.architecture == summary.architecture
    assert summary.num_matrices == len(adapter.tensors) // 2 > 0
    check(base, adapter, merged(tmp_path / "merged", name, deltas))
    if name in FROM_FILES:
        convert_adapter(tmp_path / "adapter", tmp_path / "same.gguf", tmp_path / "base.gguf", "F32")
        one, other = ((tmp_path / f"{each}.gguf").read_bytes() for each in ("adapter", "same"))
        assert one == other


@pytest.mark.parametrize("name", ["llama3", "phi3"])
def test_a_model_computes_with_it(name: str, tmp_path: Path) -> None:
    """It also works if a tensor of the file contains the rows of two matrices and has the name of one."""
    factors = write_adapter(tmp_path / "adapter", name)
    deltas = {module: second @ first * np.float32(6 / 4) for module, (first, second) in factors.items()}
    convert(DATA / name, tmp_path / "base.gguf", "F32")
    convert_adapter(tmp_path / "adapter", tmp_path / "adapter.gguf", tmp_path / "base.gguf", "F32")
    merged(tmp_path / "merged", name, deltas).close()
    ids = list(range(20, 50))
    options: Settings = {"context": 32, "kv_type": "f32", "threads": 1}
    with chaski.load(tmp_path / "merged" / "out.gguf", **options) as model:
        wanted = model.logits(ids)
    with chaski.load(tmp_path / "base.gguf", adapters={"it": tmp_path / "adapter.gguf"}, **options) as model:
        assert np.abs(model.logits(ids) - wanted).max() > 1
        np.testing.assert_allclose(model.logits(ids, adapter="it"), wanted, rtol=0, atol=1e-3)


def test_scales_by_module_and_of_rslora(tmp_path: Path) -> None:
    settings = {"use_rslora": True, "alpha_pattern": {"layers.1.mlp.up_proj": 3, "^q_proj": 5, "k_proj": 2}}
    factors = write_adapter(tmp_path / "adapter", "llama3", settings, {"v_proj": 2})
    alphas = {"layers.1.mlp.up_proj": 3, ".k_proj": 2}
    deltas = {}
    for module, (first, second) in factors.items():
        alpha = next((alpha for end, alpha in alphas.items() if module.endswith(end)), 6)
        deltas[module] = second @ first * np.float32(alpha / math.sqrt(len(first)))
    convert(DATA / "llama3", tmp_path / "base.gguf", "F32")
    convert_adapter(tmp_path / "adapter", tmp_path / "adapter.gguf", DATA / "llama3", "F32")
    base, adapter = open_gguf(tmp_path / "base.gguf"), open_gguf(tmp_path / "adapter.gguf")
    assert adapter.get("adapter.lora.alpha", float) == pytest.approx(12)
    check(base, adapter, merged(tmp_path / "merged", "llama3", deltas))


def test_as_llama_cpp_writes_it(tmp_path: Path) -> None:
    """B of queries with heads of 16 has rows 0, 8, 1, 9, …; A, and B of values, are unchanged."""
    factors = write_adapter(tmp_path / "adapter", "llama3")
    convert_adapter(tmp_path / "adapter", tmp_path / "adapter.gguf", DATA / "llama3", "F32")
    adapter, layer = open_gguf(tmp_path / "adapter.gguf"), "model.layers.1.self_attn"
    first, second = factors[f"{layer}.q_proj"]
    order = [16 * head + 8 * (i % 2) + i // 2 for head in range(4) for i in range(16)]
    np.testing.assert_array_equal(floats(adapter, "blk.1.attn_q.weight.lora_a"), first)
    np.testing.assert_array_equal(floats(adapter, "blk.1.attn_q.weight.lora_b"), second[order])
    for letter, values in zip("ab", factors[f"{layer}.v_proj"], strict=True):
        np.testing.assert_array_equal(floats(adapter, f"blk.1.attn_v.weight.lora_{letter}"), values)
    assert adapter.get("adapter.lora.alpha", float) == 6


REFUSED: list[tuple[Settings, str]] = [
    ({"peft_type": "LOHA"}, "'peft_type' is 'LOHA'"),
    ({"use_dora": True}, "'use_dora' is True"),
    ({"bias": "all"}, "'bias' is 'all'"),
    ({"fan_in_fan_out": True}, "'fan_in_fan_out' is True"),
    ({"modules_to_save": ["lm_head"]}, r"'modules_to_save' is \['lm_head'\]"),
    ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "'target_parameters'"),
    ({"init_lora_weights": "pissa_niter_4"}, "works only with a changed base"),
    ({"alora_invocation_tokens": [1, 2]}, "aLoRA"),
    ({"alpha_pattern": {".*q_proj": 3}}, r"'alpha_pattern' has '\.\*q_proj'"),
    ({"lora_alpha": 0}, "changes nothing"),
    ({"lora_alpha": "8"}, "'lora_alpha' is '8', not float"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_gguf_cannot_say(settings: Settings, message: str, tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter", "llama3", settings)
    with pytest.raises(ChaskiError, match=message):
        convert_adapter(tmp_path / "adapter", tmp_path / "out.gguf", DATA / "llama3")
    assert not (tmp_path / "out.gguf").exists()


NARROW, WIDE = np.zeros((2, 32), np.float32), np.zeros((32, 2), np.float32)
Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"
TENSORS: list[tuple[dict[str, NDArray[Any]], type[Exception], str]] = [
    ({f"{Q_PROJ}.lora_A.weight": NARROW}, ModelError, "has no matrix B"),
    (
        {f"{Q_PROJ}.lora_magnitude_vector": NARROW},
        UnsupportedError,
        "lora_magnitude_vector' is no matrix A or B",
    ),
    ({"base_model.model.model.embed_tokens.weight": WIDE}, UnsupportedError, "is no matrix A or B"),
    (
        {"base_model.model.model.embed_tokens.lora_embedding_A": NARROW},
        UnsupportedError,
        "lora_embedding_A' is no matrix",
    ),
    (
        {f"{Q_PROJ}.lora_A.weight": NARROW, f"{Q_PROJ}.lora_B.weight": WIDE.repeat(2, axis=1)},
        ModelError,
        "no common rank",
    ),
    (
        {f"{Q_PROJ}.lora_A.weight": NARROW, f"{Q_PROJ}.lora_B.weight": WIDE},
        ModelError,
        r"has shape \(32, 32\)",
    ),
    (
        {
            "model.layers.7.mlp.up_proj.lora_A.weight": NARROW,
            "model.layers.7.mlp.up_proj.lora_B.weight": WIDE,
        },
        ModelError,
        "no such matrices: layers.7.mlp.up_proj.weight",
    ),
    (
        {f"{Q_PROJ}.lora_A.weight": NARROW.astype(np.int32)},
        UnsupportedError,
        "is no matrix A or B of LoRA in",
    ),
    ({}, ModelError, "it has no tensors"),
]


@pytest.mark.parametrize(("tensors", "error", "message"), TENSORS)
def test_tensors_that_do_not_fit(
    tensors: dict[str, NDArray[Any]], error: type[Exception], message: str, tmp_path: Path
) -> None:
    write_adapter(tmp_path / "adapter", "llama3")
    types = {"float32": "F32", "int32": "I32"}
    write_safetensors(
        tmp_path / "adapter" / "adapter_model.safetensors",
        {name: (types[str(values.dtype)], values) for name, values in tensors.items()},
    )
    with pytest.raises(error, match=message):
        convert_adapter(tmp_path / "adapter", tmp_path / "out.gguf", DATA / "llama3")


def test_the_base_must_be_known(tmp_path: Path) -> None:
    adapter, out = tmp_path / "adapter", tmp_path / "out.gguf"
    write_adapter(adapter, "llama3", {"base_model_name_or_path": "meta-llama/Llama-3.2-1B"})
    with pytest.raises(ModelNotFoundError, match=r"--base.*the adapter says 'meta-llama/Llama-3.2-1B'"):
        convert_adapter(adapter, out)
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        convert_adapter(adapter, out, tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"has shape \(32, 64\), but its matrix has \(32, 32\)"):
        convert_adapter(adapter, out, DATA / "phi3")
    # Without weights, the configuration suffices, and may be next to the adapter.
    (adapter / "config.json").write_bytes((DATA / "llama3" / "config.json").read_bytes())
    assert convert_adapter(adapter, out).num_matrices == 14
    config = json.loads((adapter / "config.json").read_text()) | {"num_hidden_layers": 2**31 - 1}
    (adapter / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="'num_hidden_layers' is 2147483647"):
        convert_adapter(adapter, out)
    convert(DATA / "bert", tmp_path / "bert.gguf", "F32")
    with pytest.raises(UnsupportedError, match=r"'bert' needs the config\.json of its base"):
        convert_adapter(adapter, out, tmp_path / "bert.gguf")


def test_types(tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter", "llama3")
    for type, wanted in (("f32", {"F32"}), ("BF16", {"BF16"}), ("Q8_0", {"Q8_0", "F16"})):
        convert_adapter(tmp_path / "adapter", tmp_path / "out.gguf", DATA / "llama3", type)
        with open_gguf(tmp_path / "out.gguf") as file:
            assert {tensor.type.name for tensor in file.tensors.values()} == wanted
            assert file.get("general.file_type", int) == {"f32": 0, "BF16": 32, "Q8_0": 7}[type]


def test_the_command(tmp_path: Path) -> None:
    adapter, out = tmp_path / "adapter", tmp_path / "out.gguf"
    write_adapter(adapter, "llama3")
    convert(DATA / "llama3", tmp_path / "base.gguf", "F32")
    result = CliRunner().invoke(command, [str(adapter), str(out), "--base", str(tmp_path / "base.gguf")])
    assert result.exit_code == 0, result.output
    assert "adapter of llama" in result.output
    assert "for 14 matrices" in result.output
    assert {tensor.type.name for tensor in open_gguf(out).tensors.values()} == {"F16"}
    for arguments, message in (
        ([str(adapter), str(out), "--task", "x"], "convert it without --task"),
        ([str(DATA / "llama3"), str(out), "--base", "x"], "convert it without --base"),
        ([str(adapter), str(out), "--base", "nowhere-at-all"], "no model of that name"),
        (
            [str(adapter), str(out), "--base", str(DATA / "llama3"), "--type", "Q4_K"],
            "cannot be written as Q4_K",
        ),
    ):
        result = CliRunner().invoke(command, arguments)
        assert message in str(result.exception), arguments
