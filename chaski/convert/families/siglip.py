"""Gemma 3's encoder of images: SigLIP (Zhai et al. 2023) and what projects its averaged patches."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from chaski.convert.config import Config, read_json
from chaski.convert.family import Row, Sight, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

__all__ = ["SIGHT"]

_COLORS = 3
_PREPROCESSOR = "preprocessor_config.json"
_TOWER = "vision_tower"
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
    vision.expect("num_channels", _COLORS)
    return vision


def _sizes(config: Config) -> Metadata:
    vision = _settings(config)
    return {
        "vision.block_count": vision.get("num_hidden_layers", int),
        "vision.embedding_length": vision.get("hidden_size", int),
        "vision.feed_forward_length": vision.get("intermediate_size", int),
        "vision.image_size": vision.get("image_size", int),
        "vision.patch_size": vision.get("patch_size", int),
        "vision.attention.head_count": vision.get("num_attention_heads", int),
        "vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", float, 1e-6),
    }


def metadata(config: Config) -> Metadata:
    return _sizes(config) | {
        "vision.num_channels": _COLORS,
        "mm.tokens_per_image": config.get("mm_tokens_per_image", int, 256),
    }


def projector(config: Config) -> Metadata:
    """Where Ollama counts the rows of an image, llama.cpp has the side of the squares that are averaged."""
    vision, reader = _settings(config), Config(config.path, read_json(config.path.parent / _PREPROCESSOR))
    side = vision.get("image_size", int) // vision.get("patch_size", int)
    return {f"clip.{key}": value for key, value in _sizes(config).items()} | {
        "clip.has_vision_encoder": True,
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        "clip.vision.projection_dim": config.get("hidden_size", int),
        "clip.vision.projector.scale_factor": side // isqrt(config.get("mm_tokens_per_image", int, 256)),
        "clip.vision.image_mean": [float(value) for value in reader.list("image_mean") or [0.5] * _COLORS],
        "clip.vision.image_std": [float(value) for value in reader.list("image_std") or [0.5] * _COLORS],
    }


def tensors(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, patch = vision.get("hidden_size", int), vision.get("patch_size", int)
    num_patches = (vision.get("image_size", int) // patch) ** 2
    yield from _both("v.patch_embd", f"{_TOWER}.embeddings.patch_embedding", (size, _COLORS, patch, patch))
    name = f"{_TOWER}.embeddings.position_embedding.weight"
    yield Mapped("v.position_embd.weight", (num_patches, size), (name,))
    for layer in range(vision.get("num_hidden_layers", int)):
        yield from in_layer(layer, _layer(vision), f"{_TOWER}.encoder.layers", "v.blk")
    yield from _both("v.post_ln", f"{_TOWER}.post_layernorm", (size,))
    mm = "multi_modal_projector"
    yield Mapped("mm.soft_emb_norm.weight", (size,), (f"{mm}.mm_soft_emb_norm.weight",), shift=1)
    shape = size, config.get("hidden_size", int)
    yield Mapped("mm.input_projection.weight", shape, (f"{mm}.mm_input_projection_weight",))


def _layer(vision: Config) -> Iterator[Row]:
    size, hidden = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    for name, source, shape in (
        ("ln1", "layer_norm1", (size,)),
        ("attn_q", "self_attn.q_proj", (size, size)),
        ("attn_k", "self_attn.k_proj", (size, size)),
        ("attn_v", "self_attn.v_proj", (size, size)),
        ("attn_out", "self_attn.out_proj", (size, size)),
        ("ln2", "layer_norm2", (size,)),
        ("ffn_up", "mlp.fc1", (hidden, size)),
        ("ffn_down", "mlp.fc2", (size, hidden)),
    ):
        yield Row(name, source, shape)
        yield Row(name, source, shape[:1], ".bias")


def _both(name: str, source: str, shape: tuple[int, ...]) -> Iterator[Mapped]:
    """A weight and a bias."""
    yield Mapped(f"{name}.weight", shape, (f"{source}.weight",))
    yield Mapped(f"{name}.bias", shape[:1], (f"{source}.bias",))


SIGHT = Sight(metadata, projector, tensors, _OLLAMA)
