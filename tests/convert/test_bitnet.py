"""BitNet's matrices of three values, and the activation of its later models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.convert.families.bitnet import rounded
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.quant import QuantType
from tests import families
from tests.safetensors_files import write_safetensors

F32 = np.typing.NDArray[np.float32]
KNOWN = families.expected("bitnet/usual")
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def ternary_checkpoint(folder: Path, hidden_act: str, size: int = 64) -> Path:
    """Write a checkpoint whose matrices have three values each; all sizes are multiples of `size`."""
    config = KNOWN["config"] | {"architectures": ["BitNetForCausalLM"], "hidden_act": hidden_act}
    config |= {"hidden_size": size, "intermediate_size": size, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 4, "num_hidden_layers": 2, "model_type": "bitnet"}
    families.checkpoint(folder, config, {}, 0)
    tensors: dict[str, tuple[str, F32]] = {}
    for name, shape in shapes(config).items():
        values = families.random_tensor(name, shape, 1)
        tensors[name] = ("F32", rounded(values) if "proj" in name else values)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    size, vocabulary = config["hidden_size"], config["vocab_size"]
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, size),
        "model.norm.weight": (size,),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            "self_attn.attn_sub_norm",
            "mlp.ffn_sub_norm",
        ):
            found[f"{prefix}{name}.weight"] = (size,)
        for name in (
            "self_attn.q",
            "self_attn.k",
            "self_attn.v",
            "self_attn.o",
            "mlp.gate",
            "mlp.up",
            "mlp.down",
        ):
            found[f"{prefix}{name}_proj.weight"] = (size, size)
    return found


def logits(path: Path) -> F32:
    with chaski.load(path, context=128, threads=1, kv_type="f32") as model:
        return np.asarray(model.logits(KNOWN["prompt"].tolist()))


def test_a_matrix_is_rounded_to_the_mean_of_its_sizes() -> None:
    matrix = np.array([[0.1, -0.5, 2.0], [-1.0, 0.0, 0.3]], np.float32)
    scale = np.float32(0.65)
    wanted = scale * np.array([[0, -1, 1], [-1, 0, 0]], np.float32)
    np.testing.assert_allclose(rounded(matrix), wanted, rtol=1e-6)


def test_a_matrix_of_three_values_stays() -> None:
    matrix = np.array([[0.25, -0.25, 0], [0, 0, 0.25]], np.float32)
    assert np.array_equal(rounded(matrix), matrix)
    assert not rounded(np.zeros((2, 3), np.float32)).any()


def test_the_file_says_which_activation_the_model_has(tmp_path: Path) -> None:
    found = {}
    for name in ("silu", "relu2"):
        path = tmp_path / f"{name}.gguf"
        convert(ternary_checkpoint(tmp_path / name, name), path, "F32")
        with open_gguf(path) as file:
            assert file.metadata.get("bitnet.hidden_activation") == (None if name == "silu" else name)
        found[name] = logits(path)
    assert np.abs(found["silu"] - found["relu2"]).max() > 0.05


@pytest.mark.parametrize("kind", ["TQ1_0", "TQ2_0"])
def test_three_values_fit_into_ternary_types(tmp_path: Path, kind: str) -> None:
    plain, packed = tmp_path / "plain.gguf", tmp_path / "packed.gguf"
    folder = ternary_checkpoint(tmp_path / "checkpoint", "relu2", 256)
    convert(folder, plain, "F32")
    convert(folder, packed, kind)
    with open_gguf(packed) as file, open_gguf(plain) as exact:
        for name in (f"blk.1.{name}.weight" for name in MATRICES):
            tensor = file.tensors[name]
            assert tensor.type.name == kind
            np.testing.assert_allclose(
                dequantize(tensor.data, tensor.type, tensor.shape),
                dequantize(exact.tensors[name].data, QuantType.F32, tensor.shape),
                rtol=1e-3,  # a scale has the precision of float16
            )
    wanted, found = logits(plain), logits(packed)
    assert np.abs(found - wanted).mean() < 0.1 * wanted.std()  # the embedding is rounded, too


@pytest.mark.oracle
def test_squares_of_relu_are_those_of_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = ternary_checkpoint(tmp_path / "checkpoint", "relu2")
    path = tmp_path / "model.gguf"
    convert(folder, path, "F32")
    model = transformers.BitNetForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().double()
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([KNOWN["prompt"].tolist()])).logits[0].float().numpy()
    assert json.loads((folder / "config.json").read_text())["hidden_act"] == "relu2"
    np.testing.assert_allclose(logits(path), wanted, rtol=0, atol=1e-3)
