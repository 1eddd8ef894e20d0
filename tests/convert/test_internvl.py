"""InternVL in its authors' form converts to the same file as in transformers' form."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.convert.convert import convert
from chaski.errors import UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.safetensors import open_checkpoint
from tests.convert.checkpoints import write_safetensors

DATA = Path(__file__).parents[1] / "data" / "tiled" / "internvl"
NAMES = {
    "embeddings.cls_token": "embeddings.class_embedding",
    "embeddings.position_embeddings": "embeddings.position_embedding",
    "embeddings.patch_embeddings.projection": "embeddings.patch_embedding",
    "encoder.layer.": "encoder.layers.",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "lambda_": "ls",
    "attention.projection_layer": "attn.proj",
    "attention.q_norm": "attn.q_norm",
    "attention.k_norm": "attn.k_norm",
    "multi_modal_projector.layer_norm": "mlp1.0",
    "multi_modal_projector.linear_1": "mlp1.1",
    "multi_modal_projector.linear_2": "mlp1.3",
}


def published(folder: Path, **changes: Any) -> Path:
    """Write the checkpoint of transformers with the names of the release."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        shutil.copyfile(DATA / name, folder / name)
    config = json.loads((DATA / "config.json").read_text())
    vision = config["vision_config"]
    settings = {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "llm_config": config["text_config"],
        "vision_config": {
            **{key: vision[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")},
            **{key: vision[key] for key in ("num_attention_heads", "layer_norm_eps", "hidden_act")},
            "image_size": vision["image_size"][0],
            "patch_size": vision["patch_size"][0],
            "norm_type": vision["norm_type"],
            "qk_normalization": True,
            "qkv_bias": True,
        },
        "max_dynamic_patch": 4,
        "min_dynamic_patch": 1,
        "downsample_ratio": 0.5,
        "ps_version": "v2",
        "select_layer": -1,
        "force_image_size": vision["image_size"][0],
    }
    (folder / "config.json").write_text(json.dumps(settings | changes))
    write_safetensors(folder / "model.safetensors", tensors())
    return folder


def tensors() -> dict[str, tuple[str, Any]]:
    source = open_checkpoint(DATA)
    found: dict[str, tuple[str, Any]] = {}
    for name, tensor in source.items():
        plain = name.removeprefix("model.").replace("vision_tower.", "vision_model.")
        for old, new in NAMES.items():
            plain = plain.replace(old, new)
        if re.search(r"attention\.q_proj", plain) and "vision" in plain:
            joined = [source[name.replace("q_proj", f"{letter}_proj")].data for letter in "qkv"]
            found[plain.replace("attention.q_proj", "attn.qkv")] = (tensor.dtype, np.concatenate(joined))
        elif not ("vision" in plain and re.search(r"attention\.[kv]_proj", plain)):
            found[plain] = (tensor.dtype, np.asarray(tensor.data))
    return found


def test_both_forms_give_the_same_files(tmp_path: Path) -> None:
    for name, source in (("hf", DATA), ("own", published(tmp_path / "internvl"))):
        convert(source, tmp_path / f"{name}.gguf", "F32", projector=tmp_path / f"{name}-mmproj.gguf")
    for part in ("", "-mmproj"):
        hf, own = (open_gguf(tmp_path / f"{name}{part}.gguf") for name in ("hf", "own"))
        assert own.metadata.keys() == hf.metadata.keys()
        for key, value in hf.metadata.items():
            np.testing.assert_array_equal(own.metadata[key], value, err_msg=key)
        assert own.tensors.keys() == hf.tensors.keys()
        for key, tensor in hf.tensors.items():
            assert own.tensors[key].shape == tensor.shape
            np.testing.assert_array_equal(own.tensors[key].data, tensor.data, err_msg=key)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ps_version": "v1"}, "'ps_version' is 'v1'; only 'v2'"),
        ({"select_layer": -4}, "'select_layer' is -4; only -1"),
        ({"use_thumbnail": False}, "'use_thumbnail' is False"),
    ],
)
def test_what_readers_cannot_know(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        convert(published(tmp_path / "internvl", **changes), tmp_path / "out.gguf")
