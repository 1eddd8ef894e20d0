"""Checkpoints of Mistral 3 with vision: Pixtral in the file of the text model, and in a separate file."""

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
from chaski.convert.families.clip import STD
from chaski.errors import ChaskiError, ModelError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import open_checkpoint
from tests.convert.checkpoints import DATA, write_safetensors
from tests.convert.test_vision_encoders import values
from tests.families import expected, random_tensor
from tests.image.pictures import png

SIZE, HIDDEN, TEXT, HEADS = 32, 48, 32, 2
VISION = {
    "model_type": "pixtral",
    "hidden_size": SIZE,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "image_size": 32,
    "patch_size": 4,
    "hidden_act": "silu",
}
CONTROL = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]


def vision_tensors() -> dict[str, NDArray[np.float32]]:
    tower, mm = "model.vision_tower", "model.multi_modal_projector"
    shapes: dict[str, tuple[int, ...]] = {
        f"{tower}.patch_conv.weight": (SIZE, 3, 4, 4),
        f"{tower}.ln_pre.weight": (SIZE,),
        f"{mm}.norm.weight": (SIZE,),
        f"{mm}.patch_merger.merging_layer.weight": (SIZE, 4 * SIZE),
        f"{mm}.linear_1.weight": (TEXT, SIZE),
        f"{mm}.linear_2.weight": (TEXT, TEXT),
    }
    for layer in range(2):
        block = f"{tower}.transformer.layers.{layer}"
        shapes |= {f"{block}.attention.{x}_proj.weight": (SIZE, SIZE) for x in "qkvo"}
        shapes |= {f"{block}.feed_forward.{x}_proj.weight": (HIDDEN, SIZE) for x in ("gate", "up")}
        shapes[f"{block}.feed_forward.down_proj.weight"] = (SIZE, HIDDEN)
        shapes |= {f"{block}.{x}_norm.weight": (SIZE,) for x in ("attention", "ffn")}
    random = np.random.default_rng(1)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def checkpoint(folder: Path) -> Path:
    """Make the tiny text model of Mistral 3 with a random encoder and image tokens."""
    shutil.copytree(DATA / "mistral3", folder)
    text = json.loads((folder / "config.json").read_text())
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": VISION,
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
        "projector_hidden_act": "gelu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    first = 1 + max(token["id"] for token in tokenizer["added_tokens"])
    for number, token in enumerate(CONTROL, first):
        tokenizer["added_tokens"].append({"id": number, "content": token, "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    tensors: dict[str, Any] = {
        "model.language_model." + name.removeprefix("model."): (tensor.dtype, np.array(tensor.data))
        for name, tensor in open_checkpoint(DATA / "mistral3").items()
    }
    tensors |= {name: ("F32", values) for name, values in vision_tensors().items()}
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def see(text: Path, projector: Path | None = None) -> NDArray[np.float32]:
    with chaski.load(text, projector=projector, context=64, kv_type="f32") as model:
        return np.asarray(model.logits("a [img-0] b", [png(13, 21)]))


def test_both_in_one_file_and_each_in_one(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "in")
    whole, text, projector = (tmp_path / f"{name}.gguf" for name in ("whole", "text", "projector"))
    convert(folder, whole, "F32")
    convert(folder, text, "F32", projector=projector)
    wanted = vision_tensors()
    query = wanted["model.vision_tower.transformer.layers.1.attention.q_proj.weight"]
    neighbours = query.reshape(HEADS, 2, -1, SIZE).swapaxes(1, 2).reshape(SIZE, SIZE)
    with open_gguf(whole) as file:
        assert file.get("mistral3.vision.block_count", int) == 2
        assert file.get("mistral3.spatial_merge_size", int) == 2
        np.testing.assert_array_equal(values(file, "v.blk.1.attn_q.weight"), query)
        name = "model.multi_modal_projector.patch_merger.merging_layer.weight"
        np.testing.assert_array_equal(values(file, "mm.patch_merger.merging_layer.weight"), wanted[name])
    with open_gguf(projector) as file:
        assert (file.architecture, file.get("clip.projector_type", str)) == ("clip", "pixtral")
        assert file.get("clip.use_silu", bool)
        np.testing.assert_allclose(file.get("clip.vision.image_std", list[float]), STD, rtol=1e-6)
        np.testing.assert_array_equal(values(file, "v.blk.1.attn_q.weight"), neighbours)
        found = values(file, "v.token_embd.img_break")
    embeddings = open_checkpoint(DATA / "mistral3")["model.embed_tokens.weight"]
    with open_gguf(text) as file:
        token = list(file.metadata["tokenizer.ggml.tokens"]).index("[IMG_BREAK]")
        info = file.tensors["token_embd.weight"]
        np.testing.assert_array_equal(found, dequantize(info.data, info.type, info.shape)[token])
    np.testing.assert_array_equal(found, as_float32(embeddings.data[token]))
    np.testing.assert_allclose(see(text, projector), see(whole), rtol=0, atol=2e-3)


def test_a_tokenizer_without_the_break(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "in")
    shutil.copy(DATA / "mistral3" / "tokenizer.json", folder / "tokenizer.json")
    with pytest.raises(ModelError, match=r"no token \[IMG_BREAK\], which separates rows"):
        convert(folder, tmp_path / "text.gguf", "F32", projector=tmp_path / "projector.gguf")


def test_mistral_small_4_has_the_name_of_mistral_3(tmp_path: Path) -> None:
    """The type of the text model distinguishes them."""
    folder = checkpoint(tmp_path / "in")
    known = expected("mistral4/deep")
    config = json.loads((folder / "config.json").read_text())
    text = known["config"] | {"model_type": "mistral4", "vocab_size": 304}
    (folder / "config.json").write_text(json.dumps(config | {"text_config": text}))
    tensors: dict[str, Any] = {
        "model.language_model." + name.removeprefix("model."): ("F32", random_tensor(name, tuple(shape), 0))
        for name, shape in known["tensors"].items()
    }
    tensors |= {name: ("F32", each) for name, each in vision_tensors().items()}
    write_safetensors(folder / "model.safetensors", tensors)
    whole, alone, projector = (tmp_path / f"{name}.gguf" for name in ("whole", "text", "projector"))
    convert(folder, whole, "F32")
    convert(folder, alone, "F32", projector=projector)
    with open_gguf(whole) as file:
        assert file.architecture == "mistral4"
        assert file.get("mistral4.vision.block_count", int) == 2
    np.testing.assert_allclose(see(alone, projector), see(whole), rtol=0, atol=2e-3)
    with chaski.load(alone, context=64, kv_type="f32") as model, pytest.raises(ChaskiError, match="image"):
        model.logits("a [img-0] b", [png(13, 21)])
