"""Qwen's vision checkpoints, with the names of their releases.

Their tensors come from tests/data/vision, with transformers' results. Converting a checkpoint must restore
these tensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.convert.convert import convert
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.text.tokenizer.vocabulary import TokenType
from tests.convert.checkpoints import DATA, write_safetensors
from tests.image.pictures import png
from tests.tiny_vision import DATA as VISION_DATA

Arrays = dict[str, NDArray[Any]]

TEXT = {
    "hidden_size": 60,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "vocab_size": 307,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
SMALL = {"hidden_size": 40, "intermediate_size": 24, "num_attention_heads": 2, "head_dim": 20}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ENCODER = {"num_heads": 2, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2, "depth": 3}
DEEP = {
    "hidden_size": 16,
    "out_hidden_size": 40,
    "intermediate_size": 24,
    "num_position_embeddings": 49,
    "hidden_act": "gelu_pytorch_tanh",
}
CONFIGS: dict[str, tuple[str, list[int], dict[str, Any], dict[str, Any]]] = {
    "qwen2vl": (
        "Qwen2VLForConditionalGeneration",
        [4, 3, 3],
        {},
        {"embed_dim": 40, "hidden_size": 60, "mlp_ratio": 2, "hidden_act": "quick_gelu"},
    ),
    "qwen25vl": (
        "Qwen2_5_VLForConditionalGeneration",
        [2, 5, 3],
        {},
        {
            "hidden_size": 40,
            "out_hidden_size": 60,
            "intermediate_size": 56,
            "fullatt_block_indexes": [2],
            "hidden_act": "silu",
        },
    ),
    "qwen3vl": (
        "Qwen3VLForConditionalGeneration",
        [3, 4, 3],
        SMALL | {"num_hidden_layers": 3},
        DEEP | {"deepstack_visual_indexes": [0, 2]},
    ),
    "qwen3vlmoe": (
        "Qwen3VLMoeForConditionalGeneration",
        [4, 3, 3],
        SMALL | EXPERTS,
        DEEP | {"deepstack_visual_indexes": [0], "depth": 1},
    ),
}
NAMES = [*CONFIGS]
PREPROCESSOR = {
    "patch_size": 8,
    "merge_size": 2,
    "size": {"shortest_edge": 1024, "longest_edge": 12288},
}
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
# Parts of names, in the order in which they are replaced.
RENAMED = {
    "token_embd": "model.language_model.embed_tokens",
    "output_norm": "model.language_model.norm",
    "v.patch_embd.bias": "model.visual.patch_embed.proj.bias",
    "v.position_embd": "model.visual.pos_embed",
    "v.merger.": "model.visual.merger.",
    "v.deepstack.": "model.visual.deepstack_merger_list.",
    "v.blk.": "model.visual.blocks.",
    "blk.": "model.language_model.layers.",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate_inp": "mlp.gate",
}


def values(file: GGUFFile) -> Arrays:
    return {
        name: np.array(dequantize(info.data, info.type, info.shape)) for name, info in file.tensors.items()
    }


def write_tokenizer(folder: Path, file: GGUFFile) -> None:
    """Write the vocabulary of a file as in a release."""
    tokenizer = json.loads((DATA / "qwen2" / "tokenizer.json").read_text())
    tokens = [*map(str, np.asarray(file.metadata["tokenizer.ggml.tokens"]))]
    kinds = np.asarray(file.metadata["tokenizer.ggml.token_type"]).tolist()
    kind_of = dict(zip(tokens, kinds, strict=True))
    ids = {token: index for index, token in enumerate(kind_of)}
    tokenizer["model"]["vocab"] = {
        token: index for token, index in ids.items() if kind_of[token] == TokenType.NORMAL
    }
    tokenizer["model"]["merges"] = [*map(str, np.asarray(file.metadata["tokenizer.ggml.merges"]))]
    usual = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [
        usual | {"content": token, "id": index, "special": kind_of[token] == TokenType.CONTROL}
        for token, index in ids.items()
        if kind_of[token] in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    end = tokens[file.get("tokenizer.ggml.eos_token_id", int)]
    settings = {"eos_token": end, "chat_template": file.get("tokenizer.chat_template", str)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def published(model: str, given: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
    """Return the tensors of a file as in a checkpoint."""
    deep = CONFIGS[model][3].get("deepstack_visual_indexes", [])
    tower = {"attn_qkv": "attn.qkv", "attn_out": "attn.proj", "ln1": "norm1", "ln2": "norm2"}
    text = {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"} | {"attn_output": "self_attn.o_proj"}
    text |= {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
    match model:
        case "qwen2vl":
            tower |= {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
            merger = {"v.post_ln": "merger.ln_q", "mm.": "merger.mlp."}
        case "qwen25vl":
            tower |= {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
            merger = {}
        case _:
            tower |= {"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
            merger = {"v.post_ln": "merger.norm", "mm.0": "merger.linear_fc1", "mm.2": "merger.linear_fc2"}
    found = dict(given)
    first, second = (
        next(found.pop(name) for name in names if name in found)
        for names in (
            ("v.patch_embd.weight", "v.patch_embd_0.weight"),
            ("v.patch_embd.weight.1", "v.patch_embd_1.weight"),
        )
    )
    yield "model.visual.patch_embed.proj.weight", np.stack([first, second], 2)
    for name in [name for name in found if re.search(r"^v\..*attn_q\.", name)]:
        parts = [found.pop(name.replace("attn_q", f"attn_{letter}")) for letter in "qkv"]
        found[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    for name in [name for name in found if "ffn_gate_exps" in name]:
        gate, up, down = (
            found.pop(name.replace("gate", part)).swapaxes(1, 2) for part in ("gate", "up", "down")
        )
        experts = f"model.language_model.{name.replace('blk', 'layers').split('.ffn')[0]}.mlp.experts"
        yield f"{experts}.gate_up_proj", np.concatenate([gate, up], 2)
        yield f"{experts}.down_proj", down
    for name, array in found.items():
        own = name
        if name.startswith("v.deepstack."):
            layer, part, kind = name.split(".")[2:]
            own = f"v.deepstack.{deep.index(int(layer))}.{part.replace('fc', 'linear_fc')}.{kind}"
        for old, new in merger.items():
            if own.startswith(old):
                own = own.replace(old, f"model.visual.{new}")
        in_tower = own.startswith(("v.", "model.visual"))
        for old, new in (RENAMED | (tower if in_tower else text)).items():
            own = re.sub(rf"(^|(?<=\.)){re.escape(old)}", new, own, count=1)
        yield own, array


def checkpoint(
    model: str,
    folder: Path,
    *,
    encoder: dict[str, Any] | None = None,
    preprocessor: dict[str, Any] | None = None,
) -> Path:
    """Write the checkpoint of a file of tests/data/vision, with changed encoder and image processor
    settings."""
    folder.mkdir()
    architecture, sections, text, vision = CONFIGS[model]
    rope = {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": sections}
    config = {
        "architectures": [architecture],
        "text_config": TEXT | text | {"rope_parameters": rope},
        "vision_config": ENCODER | vision | (encoder or {}),
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(
        json.dumps(PREPROCESSOR | (HALF if "3" in model else CLIP) | (preprocessor or {}))
    )
    with open_gguf(VISION_DATA / f"{model}.gguf") as file:
        write_tokenizer(folder, file)
        tensors = {
            name: ("F32", np.ascontiguousarray(array, np.float32))
            for name, array in published(model, values(file))
        }
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize("model", NAMES)
def test_a_checkpoint_gives_the_file(model: str, tmp_path: Path) -> None:
    convert(checkpoint(model, tmp_path / "in"), tmp_path / "out.gguf", "F32")
    with open_gguf(tmp_path / "out.gguf") as found, open_gguf(VISION_DATA / f"{model}.gguf") as wanted:
        ours, theirs = values(found), values(wanted)
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            np.testing.assert_array_equal(ours[name], array, err_msg=name)
        assert found.metadata.keys() == wanted.metadata.keys()
        for key in wanted.metadata.keys() - {"general.file_type", "general.name"}:
            np.testing.assert_array_equal(found.metadata[key], wanted.metadata[key], err_msg=key)


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("preprocessor", [{}, {"image_mean": [0.1, 0.3, 0.2], "image_std": [0.4, 0.5, 0.6]}])
def test_a_projector_of_its_own_gives_the_same_logits(
    model: str, preprocessor: dict[str, Any], tmp_path: Path
) -> None:
    source = checkpoint(model, tmp_path / "in", preprocessor=preprocessor)
    convert(source, tmp_path / "whole.gguf", "F32")
    convert(source, tmp_path / "text.gguf", "F32", projector=tmp_path / "mmproj.gguf")
    prompt: Any = ("the [img-0] is", [png(40, 56)])
    with chaski.load(tmp_path / "whole.gguf", context=64) as whole:
        wanted = np.asarray(whole.logits(*prompt))
    with chaski.load(tmp_path / "text.gguf", projector=tmp_path / "mmproj.gguf", context=64) as parts:
        np.testing.assert_array_equal(np.asarray(parts.logits(*prompt)), wanted)


@pytest.mark.parametrize("model", ["qwen3vl", "qwen3vlmoe"])
def test_limits_of_videos(model: str, tmp_path: Path) -> None:
    source = checkpoint(model, tmp_path / "in")
    limits = {"size": {"shortest_edge": 4096, "longest_edge": 98304}, "fps": 2}
    (source / "video_preprocessor_config.json").write_text(json.dumps(limits))
    convert(source, tmp_path / "a.gguf", "F16")
    with open_gguf(tmp_path / "a.gguf") as file:
        prefix = f"{file.architecture}.vision"
        assert file.metadata[f"{prefix}.video_min_pixels"] == 4096
        assert file.metadata[f"{prefix}.video_max_pixels"] == 98304


@pytest.mark.parametrize(
    ("model", "encoder", "error", "message"),
    [
        ("qwen2vl", {"hidden_size": 64}, ModelError, "'hidden_size' of the encoder is not the text model's"),
        ("qwen2vl", {"temporal_patch_size": 1}, UnsupportedError, "'temporal_patch_size' is 1; only 2"),
        ("qwen25vl", {"hidden_act": "gelu"}, UnsupportedError, "'hidden_act' is 'gelu'; only 'silu'"),
        ("qwen25vl", {"window_size": 96}, UnsupportedError, "'window_size' is 96; only 112"),
        ("qwen25vl", {"fullatt_block_indexes": [1, 2]}, UnsupportedError, "every n-th layer only"),
        ("qwen3vl", {"deepstack_visual_indexes": [0, 3]}, ModelError, r"\[0, 3\] are no layers"),
    ],
)
def test_what_a_projector_cannot_say(
    model: str, encoder: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    source = checkpoint(model, tmp_path / "in", encoder=encoder)
    with pytest.raises(error, match=message):
        convert(source, tmp_path / "text.gguf", "F32", projector=tmp_path / "mmproj.gguf")
