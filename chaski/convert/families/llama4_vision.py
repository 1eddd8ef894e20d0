"""Llama 4's image encoder (Meta 2025), with its adapter and its projector."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.config import Config
from chaski.convert.families.clip import COLORS, both, preprocessor, sizes, spread
from chaski.convert.family import Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata, rope
from chaski.convert.tensors import Mapped

__all__ = ["VISION"]

_TOWER = "vision_model"
_HALF = (0.5,) * COLORS
_EPS = 1e-5  # of all its norms, regardless of the configuration
_ROPE_BASE = 10000.0
_BILINEAR = 2
_MAX_TILES = 16
# Values that configurations leave out, as transformers fills them in.
_SIZES = {
    "hidden_size": 768,
    "intermediate_size": 5632,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
    "vision_output_dim": 7680,
}
# Ollama's parts of names.
_OLLAMA = {
    "mm.model.mlp.1": "v.vision_adapter.mlp.fc1",
    "mm.model.mlp.2": "v.vision_adapter.mlp.fc2",
    "mm.model.fc": "mm.linear_1",
    "class_embd": "class_embedding",
    "patch_embd": "patch_embedding",
    "position_embd.weight": "positional_embedding_vlm",
    "pre_ln": "layernorm_pre",
    "post_ln": "layernorm_post",
    "ln1": "attn_norm",
    "ln2": "ffn_norm",
    "attn_out": "attn_output",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}


def _settings(config: Config) -> Config:
    """Return the vision model's settings. Raises UnsupportedError for settings that GGUF cannot express."""
    vision = config.part("vision_config").over(Config(config.path, _SIZES))
    vision.expect("hidden_act", "gelu")
    vision.expect("num_channels", COLORS)
    vision.expect("norm_eps", _EPS)
    vision.expect("multi_modal_projector_bias", False)
    vision.expect("vision_feature_select_strategy", "default")
    # The adapter's second matrix is square, and its output is the projector's input.
    last = vision.get("projector_output_dim", int)
    vision.expect("projector_input_dim", last)
    vision.expect("vision_output_dim", last)
    vision.expect("intermediate_size", vision.get("hidden_size", int) * _square(vision) ** 2)
    rope(vision).expect("rope_type", "default")
    return vision


def _square(vision: Config) -> int:
    return int(1 / vision.get("pixel_shuffle_ratio", float, 0.5))


def _reading(config: Config, vision: Config) -> Metadata:
    """Return the keys for cutting images that readers do not assume. Raises for unsupported ways."""
    reader = preprocessor(config)
    reader.expect("resample", _BILINEAR)
    reader.expect("resize_to_max_canvas", False)
    edge = vision.get("image_size", int)
    for key in ("height", "width"):
        reader.part("size").expect(key, edge)
    max_tiles = reader.get("max_patches", int, _MAX_TILES)
    return {} if max_tiles == _MAX_TILES else {"vision.preproc_max_tiles": max_tiles}


def _sizes(config: Config) -> Metadata:
    vision = _settings(config)
    base = rope(vision).get("rope_theta", float, _ROPE_BASE)
    return {
        **sizes(vision, eps=_EPS),
        **spread(config, _HALF, _HALF),
        **_reading(config, vision),
        **({} if base == _ROPE_BASE else {"vision.rope.freq_base": base}),
    }


def metadata(config: Config) -> Metadata:
    """Return the metadata for the text model's file, as in Ollama."""
    vision, entries = _settings(config), _sizes(config)
    entries["vision.layer_norm_epsilon"] = entries.pop("vision.attention.layer_norm_epsilon")
    entries["vision.pixel_shuffle_ratio"] = vision.get("pixel_shuffle_ratio", float, 0.5)
    return {"vision.rope.freq_base": _ROPE_BASE} | entries


def projector(config: Config) -> Metadata:
    return {
        **_sizes(config),
        "vision.projection_dim": config.get("hidden_size", int),
        "vision.projector.scale_factor": _square(_settings(config)),
        "projector_type": "llama4",
        "use_gelu": True,
    }


def tensors(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, patch = vision.get("hidden_size", int), vision.get("patch_size", int)
    places = (vision.get("image_size", int) // patch) ** 2 + 1
    yield Mapped("v.class_embd", (size,), (f"{_TOWER}.class_embedding",))
    pixels = COLORS * patch**2
    yield Mapped("v.patch_embd.weight", (size, pixels), (f"{_TOWER}.patch_embedding.linear.weight",))
    yield Mapped("v.position_embd.weight", (places, size), (f"{_TOWER}.positional_embedding_vlm",))
    yield from both("v.pre_ln", f"{_TOWER}.layernorm_pre", (size,))
    for layer in range(vision.count("num_hidden_layers")):
        yield from in_layer(layer, _layer(vision), f"{_TOWER}.model.layers", "v.blk")
    yield from both("v.post_ln", f"{_TOWER}.layernorm_post", (size,))
    merged, last = vision.get("intermediate_size", int), vision.get("projector_output_dim", int)
    for index, columns in ((1, merged), (2, last)):
        source = f"{_TOWER}.vision_adapter.mlp.fc{index}.weight"
        yield Mapped(f"mm.model.mlp.{index}.weight", (last, columns), (source,))
    shape = config.get("hidden_size", int), last
    yield Mapped("mm.model.fc.weight", shape, ("multi_modal_projector.linear_1.weight",))


def _layer(vision: Config) -> Iterator[Row]:
    size, hidden = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    for name, source, shape in (
        ("ln1", "input_layernorm", (size,)),
        ("attn_q", "self_attn.q_proj", (size, size)),
        ("attn_k", "self_attn.k_proj", (size, size)),
        ("attn_v", "self_attn.v_proj", (size, size)),
        ("attn_out", "self_attn.o_proj", (size, size)),
        ("ln2", "post_attention_layernorm", (size,)),
        ("ffn_up", "mlp.fc1", (hidden, size)),
        ("ffn_down", "mlp.fc2", (size, hidden)),
    ):
        yield Row(name, source, shape)
        yield Row(name, source, shape[:1], ".bias")


VISION = VisionFamily(metadata, projector, tensors, _OLLAMA)
