"""Gemma 4's image encoder (Google 2026), whose matrices may have bounds, and its projector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config, read_json
from chaski.convert.families.clip import COLORS, TOWER
from chaski.convert.family import Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata, rope
from chaski.convert.tensors import Mapped

__all__ = ["UNUSED", "VISION", "common", "projector_common"]

_EPS = 1e-6
_ROPE_BASE = 100.0
_ROWS = 280
_SQUARE = 3
_CAUSAL = (1536, 2560)  # hidden sizes whose images attend only to earlier tokens in readers of GGUF
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")
_LINEAR = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {
    "ln1": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}


def _settings(config: Config) -> Config:
    vision = config.part("vision_config")
    vision.expect("model_type", "gemma4_vision")
    vision.expect("hidden_activation", "gelu_pytorch_tanh")
    vision.expect("attention_bias", False)
    rope(vision).expect("rope_type", "axial", "default")
    heads = vision.get("num_attention_heads", int)
    vision.expect("num_key_value_heads", heads)
    vision.expect("head_dim", vision.get("hidden_size", int) // heads)
    return vision


def metadata(config: Config) -> Metadata:
    vision = _settings(config)
    square = vision.get("pooling_kernel_size", int, _SQUARE)
    base = rope(vision).get("rope_theta", float, _ROPE_BASE)
    entries: Metadata = {
        "vision.block_count": vision.get("num_hidden_layers", int),
        "vision.embedding_length": vision.get("hidden_size", int),
        "vision.feed_forward_length": vision.get("intermediate_size", int),
        "vision.attention.head_count": vision.get("num_attention_heads", int),
        "vision.num_channels": COLORS,
        "vision.projector.scale_factor": square,
    }
    entries |= common(config, square)
    return entries if base == _ROPE_BASE else entries | {"vision.rope.freq_base": base}


def common(config: Config, square: int) -> Metadata:
    """Return the metadata of both encoders of the family, without values that readers assume."""
    vision = config.part("vision_config")
    patch = vision.get("patch_size", int)
    entries: Metadata = {
        "vision.patch_size": patch,
        "vision.attention.layer_norm_epsilon": vision.get("rms_norm_eps", float, _EPS),
    }
    processor = _processor(config)
    rows = processor.get("max_soft_tokens", int, _ROWS)
    processor.expect("pooling_kernel_size", square)
    if rows != _ROWS:
        entries["vision.image_max_pixels"] = rows * (patch * square) ** 2
    is_bidirectional = config.get("use_bidirectional_attention", str, "") == "vision"
    if is_bidirectional is (config.get("hidden_size", int) in _CAUSAL):
        entries["vision.is_bidirectional"] = is_bidirectional
    return entries


def _processor(config: Config) -> Config:
    """The settings of the checkpoint's image processor, from either of two files."""
    folder = config.path.parent
    path = folder / "processor_config.json"
    old = folder / "preprocessor_config.json"
    return Config(path, read_json(path)).part("image_processor").over(Config(old, read_json(old)))


def projector(config: Config) -> Metadata:
    entries = metadata(config)
    del entries["vision.num_channels"]
    if entries["vision.projector.scale_factor"] == _SQUARE:
        del entries["vision.projector.scale_factor"]
    return projector_common(config, "gemma4v", entries)


def projector_common(config: Config, kind: str, entries: Metadata) -> Metadata:
    """Return the metadata of a projector. llama.cpp requires an image size, but does not use it."""
    return entries | {
        "use_gelu": True,
        "vision.image_mean": [0.0] * COLORS,
        "vision.image_size": 224,
        "vision.image_std": [1.0] * COLORS,
        "vision.projection_dim": config.get("hidden_size", int),
        "vision.projector_type": kind,
    }


def tensors(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, patch = vision.get("hidden_size", int), vision.get("patch_size", int)
    positions = vision.get("position_embedding_size", int)
    embedder = f"{TOWER}.patch_embedder"
    yield Mapped(
        "v.patch_embd.weight",
        (size, COLORS, patch, patch),
        (f"{embedder}.input_proj.weight",),
        (size, COLORS * patch**2),
        _by_colors(patch),
    )
    table = f"{embedder}.position_embedding_table"
    yield Mapped("v.position_embd.weight", (2, positions, size), (table,))
    for layer in range(vision.count("num_hidden_layers")):
        yield from in_layer(layer, _layer(vision), f"{TOWER}.encoder.layers", "v.blk")
    if vision.get("standardize", bool, False):
        for name in ("std_bias", "std_scale"):
            yield Mapped(f"v.{name}", (size,), (f"{TOWER}.{name}",))
    shape = config.get("hidden_size", int), size
    yield Mapped("mm.input_projection.weight", shape, ("embed_vision.embedding_projection.weight",))


def _by_colors(patch: int) -> Any:
    """Return the arrangement of a patch's elements from the checkpoint's pixel order to a kernel's order."""

    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        return values.reshape(-1, patch, patch, COLORS).transpose(0, 3, 1, 2)

    return arrange


def _layer(vision: Config) -> Iterator[Row]:
    size, hidden = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    shapes = {"ffn_gate": (hidden, size), "ffn_up": (hidden, size), "ffn_down": (size, hidden)}
    is_clipped = vision.get("use_clipped_linears", bool, False)
    for name, source in _LINEAR.items():
        yield Row(name, f"{source}.linear", shapes.get(name, (size, size)))
        for bound in _BOUNDS if is_clipped else ():
            yield Row(name, source, (1,), f".{bound}", source_shape=())
    for name, source in _NORMS.items():
        yield Row(name, source, (size,))
    head_size = size // vision.get("num_attention_heads", int)
    for letter in "qk":
        yield Row(f"attn_{letter}_norm", f"self_attn.{letter}_norm", (head_size,))


# Audio encoders, and matrices of layers that read the keys and values of other layers.
UNUSED = (r"(audio_tower|embed_audio)\..*", r"layers\.\d+\.self_attn\.(k_proj|v_proj|k_norm)\.weight")
VISION = VisionFamily(metadata, projector, tensors, {}, unused=UNUSED)
