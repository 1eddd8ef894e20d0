"""Checkpoints with quantized weights convert like checkpoints with the numbers that libraries decode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chaski.convert.adapter_base import AdapterBase
from chaski.convert.checkpoint import computing
from chaski.convert.config import Config
from chaski.convert.quantized import decode_stored
from chaski.convert.tensors import Mapped
from chaski.errors import ChaskiError, ModelError, UnsupportedError
from chaski.formats.quant import QuantType
from chaski.formats.safetensors import SafeTensor
from tests.convert.checkpoints import DATA, changed, written
from tests.convert.quantized import FORMATS, REPLACED, fixture, replacing, settings, stored_as


def config(values: dict[str, Any]) -> Config:
    return Config(Path("config.json"), values)


@pytest.mark.parametrize("name", FORMATS)
def test_decoded_values(name: str) -> None:
    tensors, expected = fixture(name)
    decoded = decode_stored(config(settings(name)), tensors).tensors
    for weight, values in expected.items():
        tensor = decoded[f"{weight}.weight"]
        assert tensor.is_float
        assert tensor.shape == values.shape
        np.testing.assert_array_equal(np.asarray(tensor.data), values)
        # Parts, in the orders in which families ask for them.
        np.testing.assert_array_equal(np.asarray(tensor.data[1:4]), values[1:4])
        np.testing.assert_array_equal(np.asarray(tensor.data[::-2]), values[::-2])
        np.testing.assert_array_equal(np.asarray(tensor.data[:, 2:].T), values[:, 2:].T)
        np.testing.assert_array_equal(np.asarray(tensor.data[1]), values[1])
        np.testing.assert_array_equal(np.moveaxis(tensor.data, 0, 1)[[2, 0]], values.T[[2, 0]])
        np.testing.assert_array_equal(np.concatenate([tensor.data, tensor.data]), np.tile(values, (2, 1)))
        assert tensor.data.any() == values.any()
        assert tensor.data.ravel()[-1] == values[-1, -1]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_conversion(tmp_path: Path, family: str, name: str) -> None:
    plain = {f"{REPLACED}weight": ("F32", np.array(fixture(name)[1]["square"]))}
    folders = (changed(family, tmp_path / kind / family, {}) for kind in ("stored", "plain"))
    found = written(stored_as(next(folders), replacing(name), settings(name)))
    wanted = written(stored_as(next(folders), plain, {}))
    assert {key: (each.type, each.shape, bytes(each.data)) for key, each in found.tensors.items()} == {
        key: (each.type, each.shape, bytes(each.data)) for key, each in wanted.tensors.items()
    }


def renamed(name: str, names: dict[str, str], dtypes: dict[str, str] | None = None) -> dict[str, SafeTensor]:
    """Return the tensors of a fixture under other names, with other types of the same bytes."""
    found = {}
    for key, tensor in fixture(name)[0].items():
        module, part = key.split(".", 1)
        dtype = (dtypes or {}).get(part, tensor.dtype)
        data = tensor.data.view("i1") if dtype == "I8" else tensor.data
        key = f"{module}.{names.get(part, part)}"
        found[key] = replace(tensor, name=key, dtype=dtype, data=data)
    return found


LAYOUTS: dict[str, tuple[str, dict[str, SafeTensor], dict[str, Any]]] = {
    "AutoRound as AutoGPTQ": (
        "gptq-4",
        renamed("gptq-4", {}),
        {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"},
    ),
    "AutoRound": (
        "gptq-v2",
        renamed("gptq-v2", {}),
        {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round"},
    ),
    "AutoRound as AWQ": (
        "awq",
        renamed("awq", {}),
        {"quant_method": "intel/auto-round", "packing_format": "auto_round:auto_awq"},
    ),
    "Quark": (
        "compressed-mxfp4",
        renamed("compressed-mxfp4", {"weight_packed": "weight"}),
        {"quant_method": "quark"},
    ),
    "experts of DeepSeek V4": (
        "compressed-mxfp4",
        renamed(
            "compressed-mxfp4",
            {"weight_packed": "weight", "weight_scale": "scale"},
            {"weight_packed": "I8", "weight_scale": "F8_E8M0"},
        ),
        {"quant_method": "fp8"},
    ),
    "layers of DeepSeek V4": (
        "fp8-ue8m0",
        renamed("fp8-ue8m0", {"weight_scale_inv": "scale"}),
        {"quant_method": "fp8", "weight_block_size": [16, 16]},
    ),
    "scales in bytes": (
        "fp8-ue8m0",
        renamed("fp8-ue8m0", {}, {"weight_scale_inv": "U8"}),
        {"quant_method": "fp8", "weight_block_size": [16, 16]},
    ),
    "FBGEMM": (
        "compressed-float-channel",
        renamed("compressed-float-channel", {}),
        {"quant_method": "fbgemm_fp8"},
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_same_weights_in_layouts_of_other_makers(name: str) -> None:
    source, tensors, values = LAYOUTS[name]
    decoded = decode_stored(config({"quantization_config": values}), tensors).tensors
    for weight, expected in fixture(source)[1].items():
        np.testing.assert_array_equal(np.asarray(decoded[f"{weight}.weight"].data), expected)


def made(dtype: str, values: Any) -> SafeTensor:
    array = np.array(values)
    return SafeTensor("", dtype, array.shape, Path("model.safetensors"), array)


def decoded_one(
    values: dict[str, Any], tensors: dict[str, SafeTensor], name: str = "m.weight"
) -> NDArray[Any]:
    tensors = {key: replace(each, name=key) for key, each in tensors.items()}
    return np.asarray(decode_stored(config({"quantization_config": values}), tensors).tensors[name].data)


def test_scales_of_modelopt_multiply() -> None:
    """NVIDIA stores the inverse of the number that compressed-tensors stores."""
    tensors, expected = fixture("compressed-nvfp4")
    whole = tensors.pop("odd.weight_global_scale").data
    found = decoded_one(
        {"quant_method": "modelopt"},
        {
            "m.weight": tensors["odd.weight_packed"],
            "m.weight_scale": tensors["odd.weight_scale"],
            "m.weight_scale_2": made("F32", np.float32(1) / whole),
            "m.input_scale": made("F32", np.float32([1])),
        },
    )
    np.testing.assert_allclose(found, expected["odd"], rtol=3e-7)


def test_blocks_at_the_edges_of_a_matrix_are_smaller() -> None:
    """DeepSeek V3 has matrices of 576 rows with a scale for each 128."""
    codes = np.arange(5 * 7, dtype=np.uint8).reshape(5, 7)
    scales = np.float32([[1, 2], [3, 4], [5, 6]])
    found = decoded_one(
        {"quant_method": "fp8", "weight_block_size": [2, 4]},
        {"m.weight": made("F8_E4M3", codes), "m.weight_scale_inv": made("F32", scales)},
    )
    ones = decoded_one(
        {"quant_method": "fp8"},
        {"m.weight": made("F8_E4M3", codes), "m.weight_scale_inv": made("F32", [1.0])},
    )
    np.testing.assert_array_equal(found, ones * scales.repeat(2, 0).repeat(4, 1)[:5, :7])


def test_experts_in_one_tensor() -> None:
    """Matrices of experts have scales for each expert, or for each expert's rows or columns."""
    codes = np.arange(2 * 4 * 6, dtype=np.uint8).reshape(2, 4, 6)
    plain = decoded_one(
        {"quant_method": "fp8"}, {"e": made("F8_E4M3", codes), "e_scale": made("F32", np.float32([1]))}, "e"
    )
    for shape in ((2,), (2, 4), (2, 4, 1), (2, 1, 6), (2, 2, 3), (2, 1, 1)):
        scales = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
        tensors = {"e": made("F8_E4M3", codes), "e_scale": made("F32", scales)}
        wide = scales.reshape(*shape, *[1] * (3 - len(shape)))
        wide = wide.repeat(4 // wide.shape[1], 1).repeat(6 // wide.shape[2], 2)
        np.testing.assert_array_equal(decoded_one({"quant_method": "fp8"}, tensors, "e"), plain * wide)


def test_groups_that_columns_name() -> None:
    """With the order of activations, the columns of a group are not next to each other."""
    values = settings("compressed-w4a16")["quantization_config"]
    stored = fixture("compressed-w4a16")[0]
    tensors = {
        f"m.{part}": stored[f"odd.{part}"] for part in ("weight_packed", "weight_shape", "weight_scale")
    }
    groups = np.random.default_rng(0).permutation(80).astype(np.int32) // 16
    found = decoded_one(values, tensors | {"m.weight_g_idx": made("I32", groups)})
    codes = decoded_one(values, tensors | {"m.weight_scale": made("F32", np.ones((5, 5), np.float32))})
    np.testing.assert_array_equal(found, codes * stored["odd.weight_scale"].data[:, groups])
    natural = decoded_one(values, tensors | {"m.weight_g_idx": made("I32", np.full(80, -1, np.int32))})
    np.testing.assert_array_equal(natural, fixture("compressed-w4a16")[1]["odd"])


def test_experts_in_mxfp4_have_the_order_of_transformers() -> None:
    """Rows of blocks are outputs, but the weights of experts are (experts, inputs, outputs)."""
    blocks = np.random.default_rng(0).integers(0, 256, (2, 3, 2, 16)).astype(np.uint8)
    tensors = {"e_blocks": made("U8", blocks), "e_scales": made("U8", np.full((2, 3, 2), 127, np.uint8))}
    found = decoded_one({"quant_method": "mxfp4"}, tensors, "e")
    assert found.shape == (2, 64, 3)
    one = {
        "m.weight_blocks": made("U8", blocks[1]),
        "m.weight_scales": made("U8", np.full((3, 2), 127, np.uint8)),
    }
    np.testing.assert_array_equal(found[1].T, decoded_one({"quant_method": "mxfp4"}, one))


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes-nf4"),
        (
            {"compression_config": {"config_groups": {}, "format": "float-quantized"}},
            "compressed-float-channel",
        ),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8-tensor"),
    ],
)
def test_settings_of_older_and_larger_configurations(values: dict[str, Any], name: str) -> None:
    tensors, expected = fixture(name)
    found = decode_stored(config(values), tensors).tensors["odd.weight"]
    np.testing.assert_array_equal(np.asarray(found.data), expected["odd"])


@pytest.mark.parametrize(
    ("file", "values", "name"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 16, "desc_act": False}, "gptq-4"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 16, "version": "GEMM"}, "awq"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "compressed-float-tensor"),
    ],
)
def test_settings_in_files_of_their_own(tmp_path: Path, file: str, values: dict[str, Any], name: str) -> None:
    (tmp_path / file).write_text(json.dumps(values))
    tensors, expected = fixture(name)
    decoded = decode_stored(Config(tmp_path / "config.json", {}), tensors).tensors
    np.testing.assert_array_equal(np.asarray(decoded["odd.weight"].data), expected["odd"])


def test_settings_of_mlx(tmp_path: Path) -> None:
    """They have a key of their own, and some modules may differ from the rest."""
    tensors, expected = fixture("mlx-6")
    values = {"group_size": 32, "bits": 4, "odd": {"group_size": 32, "bits": 6}, "square": {"bits": 6}}
    decoded = decode_stored(config({"quantization": values, "quantization_config": values}), tensors).tensors
    for weight, wanted in expected.items():
        np.testing.assert_array_equal(np.asarray(decoded[f"{weight}.weight"].data), wanted)


def test_experts_of_mlx_are_separate_weights() -> None:
    stored, expected = fixture("mlx-4")
    both = {
        f"layers.0.mlp.switch_mlp.up_proj.{part}": replace(
            tensor,
            shape=(2, *tensor.shape),
            data=np.stack([np.array(tensor.data), np.array(tensor.data)[::-1]]),
        )
        for part in ("weight", "scales", "biases")
        for tensor in [stored[f"odd.{part}"]]
    }
    for expert, wanted in enumerate((expected["odd"], expected["odd"][::-1])):
        name = f"layers.0.mlp.experts.{expert}.up_proj.weight"
        np.testing.assert_array_equal(
            decoded_one(settings("mlx-4")["quantization_config"], both, name), wanted
        )


def test_biases_of_zeros_that_the_model_has_no_use_for(tmp_path: Path) -> None:
    """Early quantizers by GPTQ stored one for each layer. Others are an error."""
    stored = replacing("gptq-4")
    bias = np.zeros(32, np.float16)
    folder = changed("llama3", tmp_path / "llama3", {})
    written(stored_as(folder, stored | {f"{REPLACED}bias": ("F16", bias)}, settings("gptq-4")))
    stored_as(folder, stored | {f"{REPLACED}bias": ("F16", bias + 1)}, {})
    with pytest.raises(ModelError, match=r"no use for tensors layers.0.self_attn.k_proj.bias$"):
        written(folder)


def test_an_adapter_knows_the_weights_of_its_quantized_base(tmp_path: Path) -> None:
    folder = stored_as(changed("llama3", tmp_path / "llama3", {}), replacing("gptq-4"), settings("gptq-4"))
    names = AdapterBase.open(folder, set()).names
    assert names >= AdapterBase.open(DATA / "llama3", set()).names


FAULTS: dict[str, tuple[dict[str, Any], dict[str, SafeTensor], type[ChaskiError], str]] = {
    "no scales": (
        {"quant_method": "fp8"},
        {"m.weight": made("F8_E4M3", np.zeros((2, 2), np.uint8))},
        UnsupportedError,
        "'m.weight' is F8_E4M3 and has no scales",
    ),
    "scales of another shape": (
        {"quant_method": "fp8"},
        {
            "m.weight": made("F8_E4M3", np.zeros((8, 8), np.uint8)),
            "m.weight_scale": made("F32", np.ones((3, 3))),
        },
        ModelError,
        r"'m.weight_scale' \(3, 3\) does not fit a weight of shape \(8, 8\)",
    ),
    "no zero points": (
        {"quant_method": "gptq", "bits": 4},
        {"m.qweight": made("I32", np.zeros((4, 8), np.int32))},
        ModelError,
        "'m.qzeros' is missing; 'm.qweight' cannot be decoded without it",
    ),
    "layout of Marlin": (
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {},
        UnsupportedError,
        "'checkpoint_format' .* 'marlin'; known are gptq, gptq_v2",
    ),
    "layout of AWQ": (
        {"quant_method": "awq", "version": "gemv_fast"},
        {},
        UnsupportedError,
        "'version' .* 'gemv_fast'; known are gemm",
    ),
    "format": (
        {"quant_method": "compressed-tensors", "format": "marlin-24"},
        {},
        UnsupportedError,
        "format 'marlin-24' cannot be decoded; known are .*pack-quantized",
    ),
    "sparse": (
        {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
        {},
        UnsupportedError,
        "sparse format 'sparse-24-bitmask'",
    ),
    "rotated": (
        {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}},
        {},
        UnsupportedError,
        "'transform_config' need transforms",
    ),
    "AutoRound": (
        {"quant_method": "auto-round", "packing_format": "mlx"},
        {},
        UnsupportedError,
        "'packing_format' 'mlx' cannot be decoded; known are auto_round, ",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_errors(name: str) -> None:
    values, tensors, kind, message = FAULTS[name]
    with pytest.raises(kind, match=message):
        decoded_one(values, tensors)


SAME_SIZE = {
    1: ("U8", "I8", "F8_E4M3", "BOOL"),
    2: ("F16", "BF16", "I16"),
    4: ("F32", "I32"),
    8: ("I64", "F64"),
}
TYPES = {
    "I8": "i1",
    "F16": "f2",
    "I16": "i2",
    "F32": "f4",
    "I32": "i4",
    "I64": "i8",
    "F64": "f8",
    "BF16": "u2",
}


def damaged(tensors: dict[str, SafeTensor]) -> Iterator[dict[str, SafeTensor]]:
    """Yield copies with one tensor missing, of another type, of another shape or with other values."""
    for name, tensor in tensors.items():
        yield {key: each for key, each in tensors.items() if key != name}
        values = np.atleast_1d(np.array(tensor.data))
        for dtype in SAME_SIZE[values.itemsize]:
            other = values.view(TYPES.get(dtype, "u1")).reshape(tensor.shape)
            yield tensors | {name: replace(tensor, dtype=dtype, data=other)}
        for other in (values.T, values.reshape(-1), values[..., None], values[None], values[..., :0]):
            yield tensors | {name: replace(tensor, shape=other.shape, data=np.ascontiguousarray(other))}
        for byte in (b"\0", b"\xff"):
            filled = np.frombuffer(byte * values.nbytes, values.dtype).reshape(tensor.shape)
            yield tensors | {name: replace(tensor, data=filled)}


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_parts_are_errors_that_users_understand(name: str) -> None:
    tensors = {key: each for key, each in fixture(name)[0].items() if key.startswith("odd.")}
    for each in damaged(tensors):
        with suppress(ChaskiError), np.errstate(all="ignore"):
            with computing(config(settings(name))):
                decoding = decode_stored(config(settings(name)), each)
            for key in decoding.parts:
                shape = decoding.tensors[key].shape
                if np.prod(shape):
                    list(Mapped("x", shape, (key,)).chunks(decoding.tensors, QuantType.F32))
