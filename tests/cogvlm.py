"""Tiny random checkpoints of CogVLM, and a plain computation of the published model.

tools/fixtures/make_cogvlm.py makes tests/data/cogvlm.npz. Weights follow from their names.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from chaski.image import CLIP
from tests import families

__all__ = [
    "DATA",
    "NAMES",
    "PROMPTS",
    "SIZES",
    "STEP",
    "checkpoint",
    "config_of",
    "expected",
    "given",
    "shapes_of",
    "weights_of",
]

DATA = Path(__file__).parent / "data" / "cogvlm.npz"
STEP = 3  # between tokens whose logits are kept
SIZES = {"wide": (41, 67), "high": (90, 50)}
# A number stands for the picture of that place in SIZES.
PROMPTS: dict[str, list[str | int]] = {
    "text": ["the runner carries the message over"],
    "one": [0, "what is in here"],
    "two": ["see ", 1, "and", 0, " or the other one"],
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "usual": {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4},
    "wide": {"hidden_size": 48, "intermediate_size": 36, "num_hidden_layers": 1, "num_attention_heads": 2},
    "deep": {"hidden_size": 40, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 5},
}
_VISION: dict[str, dict[str, Any]] = {
    "usual": {"hidden_size": 24, "intermediate_size": 52, "num_hidden_layers": 2, "num_heads": 3},
    "wide": {"hidden_size": 40, "intermediate_size": 28, "num_hidden_layers": 3, "num_heads": 2},
    "deep": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_heads": 4},
}
_PICTURES = {"usual": (24, 6), "wide": (21, 7), "deep": (20, 4)}  # of this size, in patches of this size
NAMES = [*_SETTINGS]


def config_of(name: str) -> dict[str, Any]:
    """Return the configuration of a checkpoint."""
    size, patch = _PICTURES[name]
    vision = _VISION[name] | {"image_size": size, "patch_size": patch, "layer_norm_eps": 1e-5}
    return _SETTINGS[name] | {
        "architectures": ["CogVLMForCausalLM"],
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "vocab_size": 304,
        "vision_config": vision | {"hidden_act": "gelu", "in_channels": 3},
    }


def shapes_of(config: dict[str, Any]) -> dict[str, list[int]]:
    """Return the tensors of a checkpoint."""
    size, inner, vision = config["hidden_size"], config["intermediate_size"], config["vision_config"]
    seen, seen_inner = vision["hidden_size"], vision["intermediate_size"]
    patch, places = vision["patch_size"], (vision["image_size"] // vision["patch_size"]) ** 2 + 1
    shapes = {
        "lm_head.weight": [304, size],
        "model.embed_tokens.weight": [304, size],
        "model.norm.weight": [size],
    }
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{start}{norm}.weight"] = [size]
        for kind in ("language", "vision"):
            shapes[f"{start}self_attn.{kind}_expert_query_key_value.weight"] = [3 * size, size]
            shapes[f"{start}self_attn.{kind}_expert_dense.weight"] = [size, size]
            for part in ("gate_proj", "up_proj"):
                shapes[f"{start}mlp.{kind}_mlp.{part}.weight"] = [inner, size]
            shapes[f"{start}mlp.{kind}_mlp.down_proj.weight"] = [size, inner]
    start = "model.vision."
    shapes |= {f"{start}{name}": [1, 1, size] for name in ("boi", "eoi")}
    shapes[f"{start}patch_embedding.cls_embedding"] = [1, seen]
    shapes[f"{start}patch_embedding.proj.weight"] = [seen, 3, patch, patch]
    shapes[f"{start}patch_embedding.proj.bias"] = [seen]
    shapes[f"{start}patch_embedding.position_embedding.weight"] = [places, seen]
    for layer in range(vision["num_hidden_layers"]):
        part = f"{start}transformer.layers.{layer}."
        matrices = {"attention.query_key_value": [3 * seen, seen], "attention.dense": [seen, seen]}
        matrices |= {"mlp.fc1": [seen_inner, seen], "mlp.fc2": [seen, seen_inner]}
        matrices |= {"input_layernorm": [seen], "post_attention_layernorm": [seen]}
        for name, shape in matrices.items():
            shapes |= {f"{part}{name}.weight": shape, f"{part}{name}.bias": shape[:1]}
    part = f"{start}linear_proj."
    shapes |= {f"{part}{name}.weight": [inner, size] for name in ("gate_proj", "dense_h_to_4h")}
    shapes |= {f"{part}linear_proj.weight": [size, seen], f"{part}dense_4h_to_h.weight": [size, inner]}
    return shapes | {f"{part}norm1.{kind}": [size] for kind in ("weight", "bias")}


def weights_of(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights of a checkpoint."""
    shapes = shapes_of(config_of(name))
    return {key: families.random_tensor(key, tuple(shape), 0) for key, shape in shapes.items()}


def checkpoint(folder: Path, name: str) -> Path:
    """Write a checkpoint."""
    config = config_of(name)
    families.checkpoint(folder, config, shapes_of(config), 0)
    settings = {"image_mean": list(CLIP.mean), "image_std": list(CLIP.std)}
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
