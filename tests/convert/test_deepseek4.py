"""Published checkpoints of DeepSeek V4: matrices in FP8, experts in FP4, and a block for more tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.convert.blocks import with_present_blocks
from chaski.convert.config import Config
from chaski.convert.convert import convert
from chaski.convert.families import find_family
from chaski.formats.gguf import open_gguf
from tests.families import TOKENIZER, expected
from tests.safetensors_files import write_safetensors

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
FP8 = {0x30: 0.5, 0x38: 1.0, 0x40: 2.0, 0xB8: -1.0}
IN_FP8 = tuple(f"{name}.weight" for name in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "e_proj", "h_proj"))
Stored = dict[str, tuple[str, NDArray[Any]]]


def checkpoints() -> tuple[dict[str, Any], Stored, Stored]:
    """Return a configuration, the tensors of a published checkpoint, and the same in float32."""
    known = expected("deepseek4/blocks")
    config = known["config"] | {"hidden_size": 64, "moe_intermediate_size": 32}
    names = {*known["tensors"], *known["integers"]}
    read = with_present_blocks(Config(Path("config.json"), config), names)
    shapes = {
        name: shape
        for planned in find_family(read).tensors(read, names)
        for name, shape in planned.sources.items()
    }
    random = np.random.default_rng(2)
    published: Stored = {}
    plain: Stored = {}
    for name, shape in shapes.items():
        if name in known["integers"]:
            table = np.array(known["integers"][name], np.int64)
            published[name] = plain[name] = ("I64", table)
        elif ".ffn.experts." in name:
            pairs = random.integers(256, size=(shape[0], shape[1] // 2)).astype(np.uint8)
            exponents = random.integers(120, 130, size=(shape[0], shape[1] // 32)).astype(np.uint8)
            values = np.stack([FP4[pairs & 15], FP4[pairs >> 4]], axis=2).reshape(shape)
            published[name] = ("I8", pairs.view(np.int8))
            published[name.replace("weight", "scale")] = ("F8_E8M0", exponents)
            plain[name] = ("F32", values * np.exp2(exponents - np.float32(127)).repeat(32, axis=1))
        elif name.endswith(IN_FP8) and "compressor" not in name:
            stored = random.choice(list(FP8), size=shape).astype(np.uint8)
            exponents = random.integers(120, 130, size=(1, 1)).astype(np.uint8)
            values = np.vectorize(FP8.get)(stored).astype(np.float32)
            published[name] = ("F8_E4M3", stored)
            published[name.replace("weight", "scale")] = ("F8_E8M0", exponents)
            plain[name] = ("F32", values * np.exp2(np.float32(exponents[0, 0]) - 127))
        else:
            published[name] = plain[name] = ("F32", random.standard_normal(shape).astype(np.float32))
    return config, published, plain


def file_of(folder: Path, config: dict[str, Any], tensors: Stored) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for path in TOKENIZER.glob("tokenizer*.json"):
        shutil.copyfile(path, folder / path.name)
    write_safetensors(folder / "model.safetensors", tensors)
    convert(folder, folder / "model.gguf", "F32")
    return folder / "model.gguf"


def test_fp8_and_fp4_are_decoded(tmp_path: Path) -> None:
    config, published, plain = checkpoints()
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    quantized = file_of(tmp_path / "published", config | {"quantization_config": settings}, published)
    with open_gguf(quantized) as found, open_gguf(file_of(tmp_path / "plain", config, plain)) as wanted:
        joined = wanted.tensors["blk.2.nextn.eh_proj.weight"].data.view(np.float32).reshape(64, 128)
        parts = [plain[f"mtp.0.{each}_proj.weight"][1] for each in ("e", "h")]
        np.testing.assert_array_equal(joined, np.concatenate(parts, axis=1))
        assert found.metadata.keys() == wanted.metadata.keys()
        assert found.tensors.keys() == wanted.tensors.keys()
        for name, info in wanted.tensors.items():
            assert found.tensors[name].shape == info.shape
            np.testing.assert_array_equal(found.tensors[name].data, info.data, err_msg=name)
