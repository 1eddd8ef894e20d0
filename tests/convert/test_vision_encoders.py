"""Vision checkpoints: the encoder in the file of the text model, and in a separate file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.convert.convert import convert
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.safetensors import open_checkpoint
from tests.convert.checkpoints import DATA, write_safetensors

SIZE, HIDDEN, TEXT = 64, 88, 32
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": SIZE,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 24,
    "patch_size": 4,
    "vision_use_head": False,
}


def vision_tensors() -> dict[str, NDArray[np.float32]]:
    shapes: dict[str, tuple[int, ...]] = {
        "vision_tower.embeddings.patch_embedding.weight": (SIZE, 3, 4, 4),
        "vision_tower.embeddings.patch_embedding.bias": (SIZE,),
        "vision_tower.embeddings.position_embedding.weight": (36, SIZE),
        "vision_tower.post_layernorm.weight": (SIZE,),
        "vision_tower.post_layernorm.bias": (SIZE,),
        "multi_modal_projector.mm_soft_emb_norm.weight": (SIZE,),
        "multi_modal_projector.mm_input_projection_weight": (SIZE, TEXT),
    }
    for layer in range(2):
        block = f"vision_tower.encoder.layers.{layer}"
        matrices = {f"self_attn.{x}_proj": (SIZE, SIZE) for x in ("q", "k", "v", "out")}
        matrices |= {"mlp.fc1": (HIDDEN, SIZE), "mlp.fc2": (SIZE, HIDDEN)}
        for name, shape in matrices.items():
            shapes |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[:1]}
        for name in ("layer_norm1", "layer_norm2"):
            shapes |= {f"{block}.{name}.weight": (SIZE,), f"{block}.{name}.bias": (SIZE,)}
    random = np.random.default_rng(1)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def checkpoint(folder: Path, outer: str = "model.", tower: str = "", **changes: Any) -> Path:
    """Write the tiny text model of Gemma 3 with a random encoder; `outer`, `tower`: parts of names."""
    shutil.copytree(DATA / "gemma3", folder)
    text = json.loads((folder / "config.json").read_text())
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": VISION | changes,
        "mm_tokens_per_image": 9,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5, 0.25, 0.5]}))
    tensors: dict[str, Any] = {
        "model.language_model." + name.removeprefix("model."): (tensor.dtype, np.array(tensor.data))
        for name, tensor in open_checkpoint(DATA / "gemma3").items()
    }
    for name, values in vision_tensors().items():
        tensors[outer + name.replace("vision_tower.", f"vision_tower.{tower}")] = ("F32", values)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def values(file: GGUFFile, name: str) -> NDArray[np.float32]:
    info = file.tensors[name]
    return info.data.view(np.float32).reshape(info.shape)


@pytest.mark.parametrize(
    ("outer", "tower"), [("model.", ""), ("", "vision_model."), ("model.", "vision_model.")]
)
def test_both_in_one_file(tmp_path: Path, outer: str, tower: str) -> None:
    convert(checkpoint(tmp_path / "in", outer, tower), tmp_path / "out.gguf", "F32")
    with open_gguf(tmp_path / "out.gguf") as file:
        assert file.get("gemma3.vision.block_count", int) == 2
        assert file.get("gemma3.mm.tokens_per_image", int) == 9
        wanted = vision_tensors()
        for name, source in (
            ("v.patch_embedding.weight", "vision_tower.embeddings.patch_embedding.weight"),
            ("v.blk.1.mlp.fc2.bias", "vision_tower.encoder.layers.1.mlp.fc2.bias"),
            ("v.blk.0.attn_output.weight", "vision_tower.encoder.layers.0.self_attn.out_proj.weight"),
            ("mm.mm_input_projection.weight", "multi_modal_projector.mm_input_projection_weight"),
        ):
            np.testing.assert_array_equal(values(file, name), wanted[source])
        norm = wanted["multi_modal_projector.mm_soft_emb_norm.weight"] + 1
        np.testing.assert_array_equal(values(file, "mm.mm_soft_emb_norm.weight"), norm)
    with chaski.load(tmp_path / "out.gguf", context=64) as model:
        assert model.has_vision


def test_each_in_a_file(tmp_path: Path) -> None:
    text, projector = tmp_path / "text.gguf", tmp_path / "projector.gguf"
    convert(checkpoint(tmp_path / "in"), text, "Q8_0", projector=projector)
    with open_gguf(text) as file:
        assert not [name for name in file.tensors if name.startswith(("v.", "mm."))]
    with open_gguf(projector) as file:
        assert (file.architecture, file.get("clip.projector_type", str)) == ("clip", "gemma3")
        assert file.get("clip.vision.projector.scale_factor", int) == 2
        assert file.get("clip.vision.image_mean", list[float]).tolist() == [0.5, 0.25, 0.5]
        assert file.get("clip.vision.image_std", list[float]).tolist() == [0.5] * 3
        types = {name: tensor.type.name for name, tensor in file.tensors.items()}
    assert types["v.blk.0.attn_q.weight"] == "Q8_0"
    assert types["v.blk.0.ffn_down.weight"] == types["mm.input_projection.weight"] == "F16"
    assert (
        types["v.patch_embd.weight"]
        == types["v.blk.0.attn_q.bias"]
        == types["v.position_embd.weight"]
        == "F32"
    )
    with chaski.load(text, projector=projector, context=64) as model:
        assert model.has_vision


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the checkpoint has no encoder of images"):
        convert(DATA / "gemma3", tmp_path / "out.gguf", projector=tmp_path / "projector.gguf")
    with pytest.raises(UnsupportedError, match="'hidden_act' is 'relu'"):
        convert(checkpoint(tmp_path / "in", hidden_act="relu"), tmp_path / "out.gguf")
    with pytest.raises(ModelError, match=r"layers\.2.*is missing"):
        convert(checkpoint(tmp_path / "in3", num_hidden_layers=3), tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
