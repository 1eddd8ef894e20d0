"""Tiny random checkpoints of DeepSeek-OCR and DeepSeek-OCR 2. Weights follow from their names.

tools/fixtures/make_deepseek_ocr.py makes tests/data/deepseek_ocr.npz.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests import families

__all__ = [
    "DATA",
    "FULL",
    "NAMES",
    "PROMPTS",
    "SECOND",
    "SIZES",
    "STEP",
    "checkpoint",
    "config_of",
    "expected",
    "given",
    "shapes_of",
    "tile_of",
    "weights_of",
]

DATA = Path(__file__).parent / "data" / "deepseek_ocr.npz"
STEP = 5  # between tokens whose logits are kept
SIZES = {"small": (70, 110), "wide": (140, 390), "high": (420, 300)}
# A number stands for the picture of that place in SIZES.
PROMPTS: dict[str, list[str | int]] = {
    "text": ["the runner carries the message over"],
    "one": [0, "what is in here"],
    "two": ["see ", 1, "and", 0, " or the other one"],
}
FULL = "full"  # views of the published size, which llama.cpp takes for granted
_PATCH, _NECK = 16, 256
_TEXT: dict[str, dict[str, Any]] = {
    "usual": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "padded": {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2},
    "odd": {"hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5},
    FULL: {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
}
_SAM: dict[str, dict[str, Any]] = {
    "usual": {"width": 24, "heads": 3, "layers": 3, "global_attn_indexes": [1]},
    "padded": {"width": 20, "heads": 2, "layers": 2, "global_attn_indexes": [1]},
    "odd": {"width": 28, "heads": 4, "layers": 3, "global_attn_indexes": [0, 2]},
    FULL: {"width": 24, "heads": 3, "layers": 3, "global_attn_indexes": [2]},
}
_CLIP: dict[str, dict[str, Any]] = {
    "usual": {"width": 24, "heads": 2, "layers": 4},
    "padded": {"width": 32, "heads": 4, "layers": 4},
    "odd": {"width": 40, "heads": 2, "layers": 4},
    FULL: {"width": 24, "heads": 2, "layers": 4},
}
_MIDDLE = {"usual": 20, "padded": 12, "odd": 28, FULL: 20}  # channels between the last convolutions
_SIDES = {"usual": 16, "padded": 16, "odd": 20, FULL: 64}  # patches of the largest view, each way
_WINDOWS = {"usual": 5, "padded": 14, "odd": 7, FULL: 14}
_QUERIES: dict[str, dict[str, Any]] = {
    "second": {"layers": 4, "num_attention_heads": 4, "intermediate_size": 44, "dim": 32},
    "second-padded": {"layers": 4, "num_attention_heads": 2, "intermediate_size": 28, "dim": 36},
}
_TEXT |= {"second": _TEXT["usual"], "second-padded": _TEXT["odd"]}
_SAM |= {"second": _SAM["usual"], "second-padded": _SAM["padded"]}
_MIDDLE |= {"second": 20, "second-padded": 12}
_SIDES |= {"second": 16, "second-padded": 16}
_WINDOWS |= {"second": 5, "second-padded": 14}
SECOND = [*_QUERIES]
"""The checkpoints of DeepSeek-OCR 2."""
NAMES = [name for name in _TEXT if name != FULL]


def tile_of(name: str) -> int:
    """Return the pixels of a tile, each way."""
    return _SIDES[name] * (6 if name in SECOND else 5) // 8 * _PATCH


def config_of(name: str) -> dict[str, Any]:
    """Return the configuration of a checkpoint."""
    rows, size = _SIDES[name] // 4, _TEXT[name]["hidden_size"]
    vision: dict[str, Any] = {"image_size": _SIDES[name] * _PATCH, "window_size": _WINDOWS[name]}
    if name in SECOND:
        queries = dict(_QUERIES[name])
        width = read = queries.pop("dim")
        vision |= queries
        after = {"qwen2-0-5b": {"dim": width}}
    else:
        clip = _CLIP[name] | {"image_size": 14 * rows, "patch_size": 14}
        width, read = clip["width"], 2 * clip["width"]
        after = {"clip-l-14-224": clip}
    sam = _SAM[name] | {"downsample_channels": [_MIDDLE[name], width]}
    return _TEXT[name] | {
        "architectures": ["DeepseekOCR2ForCausalLM" if name in SECOND else "DeepseekOCRForCausalLM"],
        "vocab_size": 304,
        "intermediate_size": 44,
        "moe_intermediate_size": 20,
        "num_key_value_heads": _TEXT[name]["num_attention_heads"],
        "max_position_embeddings": 256,
        "n_routed_experts": 6,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "use_mla": False,
        "qk_rope_head_dim": 0,
        "tie_word_embeddings": False,
        "projector_config": {"input_dim": read, "n_embed": size, "projector_type": "linear"},
        "vision_config": vision | {"width": {**after, "sam_vit_b": sam}},
    }


def shapes_of(config: dict[str, Any]) -> dict[str, list[int]]:
    """Return the tensors of a checkpoint."""
    size = config["hidden_size"]
    shapes = {"lm_head.weight": [304, size], "model.embed_tokens.weight": [304, size]}
    shapes |= {f"model.{name}": [size] for name in ("norm.weight", "image_newline", "view_seperator")}
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{start}{norm}.weight"] = [size]
        shapes |= {f"{start}self_attn.{each}_proj.weight": [size, size] for each in "qkvo"}
        if layer < config["first_k_dense_replace"]:
            networks = {"mlp": config["intermediate_size"]}
        else:
            shapes[f"{start}mlp.gate.weight"] = [config["n_routed_experts"], size]
            inner = config["moe_intermediate_size"]
            networks = {f"mlp.experts.{index}": inner for index in range(config["n_routed_experts"])}
            networks["mlp.shared_experts"] = inner * config["n_shared_experts"]
        for network, inner in networks.items():
            shapes |= {f"{start}{network}.{part}_proj.weight": [inner, size] for part in ("gate", "up")}
            shapes[f"{start}{network}.down_proj.weight"] = [size, inner]
    vision = config["vision_config"]
    is_second = "qwen2-0-5b" in vision["width"]
    if is_second:
        del shapes["model.image_newline"]
    seen = _sam_shapes(vision) | (_query_shapes(vision) if is_second else _clip_shapes(vision))
    width = config["projector_config"]["input_dim"]
    seen |= {"projector.layers.weight": [size, width], "projector.layers.bias": [size]}
    return shapes | {f"model.{name}": shape for name, shape in seen.items()}


def _sam_shapes(vision: dict[str, Any]) -> dict[str, list[int]]:
    sam = vision["width"]["sam_vit_b"]
    size, side = sam["width"], vision["image_size"] // _PATCH
    shapes = {
        "patch_embed.proj.weight": [size, 3, _PATCH, _PATCH],
        "patch_embed.proj.bias": [size],
        "pos_embed": [1, side, side, size],
    }
    for layer in range(sam["layers"]):
        matrices = {"norm1": [size], "norm2": [size], "attn.qkv": [3 * size, size], "attn.proj": [size, size]}
        matrices |= {"mlp.lin1": [4 * size, size], "mlp.lin2": [size, 4 * size]}
        for name, shape in matrices.items():
            shapes |= {f"blocks.{layer}.{name}.weight": shape, f"blocks.{layer}.{name}.bias": shape[:1]}
        reach = side if layer in sam["global_attn_indexes"] else vision["window_size"]
        for axis in "hw":
            shapes[f"blocks.{layer}.attn.rel_pos_{axis}"] = [2 * reach - 1, size // sam["heads"]]
    middle, last = sam["downsample_channels"]
    shapes |= {f"neck.{index}.{kind}": [_NECK] for index in (1, 3) for kind in ("weight", "bias")}
    shapes |= {"neck.0.weight": [_NECK, size, 1, 1], "neck.2.weight": [_NECK, _NECK, 3, 3]}
    shapes |= {"net_2.weight": [middle, _NECK, 3, 3], "net_3.weight": [last, middle, 3, 3]}
    return {f"sam_model.{name}": shape for name, shape in shapes.items()}


def _query_shapes(vision: dict[str, Any]) -> dict[str, list[int]]:
    size, side = vision["width"]["qwen2-0-5b"]["dim"], vision["image_size"] // _PATCH
    few, inner = 2 * size // vision["num_attention_heads"], vision["intermediate_size"]
    shapes = {
        "query_1024.weight": [(side // 4) ** 2, size],
        "query_768.weight": [(side * 3 // 16) ** 2, size],
    }
    shapes["model.model.norm.weight"] = [size]
    for layer in range(vision["layers"]):
        start = f"model.model.layers.{layer}."
        shapes |= {f"{start}{each}_layernorm.weight": [size] for each in ("input", "post_attention")}
        for letter, rows in (("q", size), ("k", few), ("v", few)):
            shapes[f"{start}self_attn.{letter}_proj.weight"] = [rows, size]
            shapes[f"{start}self_attn.{letter}_proj.bias"] = [rows]
        shapes[f"{start}self_attn.o_proj.weight"] = [size, size]
        shapes |= {f"{start}mlp.{each}_proj.weight": [inner, size] for each in ("gate", "up")}
        shapes[f"{start}mlp.down_proj.weight"] = [size, inner]
    return {f"qwen2_model.{name}": shape for name, shape in shapes.items()}


def _clip_shapes(vision: dict[str, Any]) -> dict[str, list[int]]:
    clip = vision["width"]["clip-l-14-224"]
    size, patch = clip["width"], clip["patch_size"]
    shapes = {
        "embeddings.class_embedding": [size],
        "embeddings.patch_embedding.weight": [size, 3, patch, patch],
        "embeddings.position_embedding.weight": [1 + (clip["image_size"] // patch) ** 2, size],
        "pre_layrnorm.weight": [size],
        "pre_layrnorm.bias": [size],
    }
    for layer in range(clip["layers"]):
        matrices = {"layer_norm1": [size], "layer_norm2": [size]}
        matrices |= {"self_attn.qkv_proj": [3 * size, size], "self_attn.out_proj": [size, size]}
        matrices |= {"mlp.fc1": [4 * size, size], "mlp.fc2": [size, 4 * size]}
        for name, shape in matrices.items():
            start = f"transformer.layers.{layer}.{name}"
            shapes |= {f"{start}.weight": shape, f"{start}.bias": shape[:1]}
    return {f"vision_model.{name}": shape for name, shape in shapes.items()}


def weights_of(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights of a checkpoint."""
    shapes = shapes_of(config_of(name))
    return {key: families.random_tensor(key, tuple(shape), 0) for key, shape in shapes.items()}


def checkpoint(folder: Path, name: str) -> Path:
    """Write a checkpoint."""
    config = config_of(name)
    families.checkpoint(folder, config, shapes_of(config), 0)
    settings = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def given(prompt: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a prompt's text, and the sizes of its pictures."""
    shown = [part for part in PROMPTS[prompt] if isinstance(part, int)]
    text = "".join(
        part if isinstance(part, str) else f"[img-{shown.index(part)}]" for part in PROMPTS[prompt]
    )
    return text, [[*SIZES.values()][index] for index in shown]


@cache
def expected() -> dict[str, Any]:
    with np.load(DATA) as arrays:
        return dict(arrays)
