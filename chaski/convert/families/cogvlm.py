"""CogVLM (Wang et al. 2023), with its matrices for pictures and its encoder, EVA-CLIP."""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import chain

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.families.clip import COLORS, MEAN, STD, both, sizes, spread
from chaski.convert.family import Row, VisionFamily, in_layer, in_layers
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Mapped, Planned

_PARTS = {
    "attn_qkv": "self_attn.{}_expert_query_key_value",
    "attn_output": "self_attn.{}_expert_dense",
    "ffn_gate": "mlp.{}_mlp.gate_proj",
    "ffn_up": "mlp.{}_mlp.up_proj",
    "ffn_down": "mlp.{}_mlp.down_proj",
}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("num_multi_query_heads", None)  # CogVLM 2
    config.expect("rope_theta", 10000.0)
    return common_metadata(config) | {
        "rope.dimension_count": head_size(config),
        "vocab_size": config.get("vocab_size", int),
    }


def _special(config: Config) -> Specials:
    return {name: Special(sources=(source.format("language"),)) for name, source in _PARTS.items()}


def _experts(config: Config) -> Iterator[Row]:
    """Yield a layer's matrices for the rows of pictures."""
    hidden, inner = config.get("hidden_size", int), config.get("intermediate_size", int)
    shapes = {
        "attn_qkv": (3 * hidden, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    for name, source in _PARTS.items():
        yield Row(f"vis_{name.removeprefix('ffn_')}", source.format("vision"), shapes[name])


_TEXT = derived_family("cogvlm", metadata, _special)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from chain(_TEXT.tensors(config, names), in_layers(config, _experts(config)))


def _sizes(config: Config) -> Metadata:
    vision = _vision(config)
    return {
        **sizes(vision, eps=1e-6),
        **spread(config, MEAN, STD),
        "projector_type": "cogvlm",
        "vision.projection_dim": config.get("hidden_size", int),
    }


def _vision(config: Config) -> Config:
    """Return the settings of the encoder. Raises UnsupportedError for what GGUF cannot express."""
    vision = config.part("vision_config")
    vision.expect("hidden_act", "gelu")
    heads = Config(vision.path, {"num_attention_heads": vision.get("num_heads", int)})
    return heads.over(vision)


def _seen(config: Config) -> Iterator[Mapped]:
    vision = _vision(config)
    size, patch = vision.get("hidden_size", int), vision.get("patch_size", int)
    places = 1 + (vision.get("image_size", int) // patch) ** 2
    embedding = "vision.patch_embedding"
    yield Mapped("v.class_embd", (1, size), (f"{embedding}.cls_embedding",))
    yield from both("v.patch_embd", f"{embedding}.proj", (size, COLORS, patch, patch))
    yield Mapped("v.position_embd.weight", (places, size), (f"{embedding}.position_embedding.weight",))
    for layer in range(vision.count("num_hidden_layers")):
        yield from in_layer(layer, _seen_layer(vision), "vision.transformer.layers", "v.blk")
    yield from _projection(config, size)


def _seen_layer(vision: Config) -> Iterator[Row]:
    size, inner = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    for name, source, shape in (
        ("ln1", "input_layernorm", (size,)),
        ("attn_qkv", "attention.query_key_value", (3 * size, size)),
        ("attn_out", "attention.dense", (size, size)),
        ("ln2", "post_attention_layernorm", (size,)),
        ("ffn_up", "mlp.fc1", (inner, size)),
        ("ffn_down", "mlp.fc2", (size, inner)),
    ):
        yield Row(name, source, shape)
        yield Row(name, source, shape[:1], ".bias")


def _projection(config: Config, size: int) -> Iterator[Mapped]:
    hidden, inner = config.get("hidden_size", int), config.get("intermediate_size", int)
    part = "vision.linear_proj"
    for name, source, shape in (
        ("model.fc", "linear_proj", (hidden, size)),
        ("gate", "gate_proj", (inner, hidden)),
        ("up", "dense_h_to_4h", (inner, hidden)),
        ("down", "dense_4h_to_h", (hidden, inner)),
    ):
        yield Mapped(f"mm.{name}.weight", shape, (f"{part}.{source}.weight",))
    yield from both("mm.post_fc_norm", f"{part}.norm1", (hidden,))
    for name in ("boi", "eoi"):
        yield Mapped(f"v.{name}", (1, 1, hidden), (f"vision.{name}",))


VISION = VisionFamily(_sizes, _sizes, _seen, {})
FAMILY = replace(_TEXT, tensors=tensors, unused=(r"vision\..*",), vision=VISION)
CHECKPOINTS = ("CogVLMForCausalLM",)
