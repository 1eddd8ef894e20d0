"""Gemma 3's image encoder: SigLIP (Zhai et al. 2023) and a projector for averaged patches."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from chaski.convert.config import Config
from chaski.convert.families.clip import COLORS, TOWER, both, embeddings, layers, sizes, spread
from chaski.convert.family import VisionFamily
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

__all__ = ["VISION"]

_EPS = 1e-6
_HALF = (0.5,) * COLORS
_OLLAMA = {
    "patch_embd": "patch_embedding",
    "position_embd": "position_embedding",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "attn_out": "attn_output",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
    "post_ln": "post_layernorm",
    "soft_emb_norm": "mm_soft_emb_norm",
    "input_projection": "mm_input_projection",
}


def _settings(config: Config) -> Config:
    vision = config.part("vision_config")
    vision.expect("model_type", "siglip_vision_model")
    vision.expect("hidden_act", "gelu_pytorch_tanh")
    vision.expect("vision_use_head", False)
    vision.expect("num_channels", COLORS)
    return vision


def metadata(config: Config) -> Metadata:
    return sizes(_settings(config), eps=_EPS) | {
        "vision.num_channels": COLORS,
        "mm.tokens_per_image": config.get("mm_tokens_per_image", int, 256),
    }


def projector(config: Config) -> Metadata:
    """Return the projector's metadata. Ollama stores the number of rows, llama.cpp the side of a square."""
    vision = _settings(config)
    side = vision.get("image_size", int) // vision.get("patch_size", int)
    return {
        **sizes(vision, eps=_EPS),
        **spread(config, _HALF, _HALF),
        "projector_type": "gemma3",
        "use_gelu": True,
        "vision.projection_dim": config.get("hidden_size", int),
        "vision.projector.scale_factor": side // isqrt(config.get("mm_tokens_per_image", int, 256)),
    }


def tensors(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size = vision.get("hidden_size", int)
    yield from embeddings(vision, TOWER)
    yield from layers(vision, vision.count("num_hidden_layers"))
    yield from both("v.post_ln", f"{TOWER}.post_layernorm", (size,))
    mm = "multi_modal_projector"
    yield Mapped("mm.soft_emb_norm.weight", (size,), (f"{mm}.mm_soft_emb_norm.weight",), shift=1)
    shape = size, config.get("hidden_size", int)
    yield Mapped("mm.input_projection.weight", shape, (f"{mm}.mm_input_projection_weight",))


VISION = VisionFamily(metadata, projector, tensors, _OLLAMA)
