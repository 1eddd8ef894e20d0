"""Mistral 3's image encoder: Pixtral (Agrawal et al. 2024), a patch merger and a projector."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from chaski.convert.config import Config, read_json
from chaski.convert.families.clip import COLORS, MEAN, STD, TOWER, sizes, spread
from chaski.convert.family import Row, VisionFamily, in_layer, rotation
from chaski.convert.metadata import Metadata, rope
from chaski.convert.tensors import Mapped
from chaski.errors import ModelError

__all__ = ["VISION"]

_EPS = 1e-5  # configurations do not contain it
_BREAK = "[IMG_BREAK]"
_ROPE_BASE = 10000.0
_OLLAMA = {
    "patch_embd": "patch_conv",
    "pre_ln": "encoder_norm",
    "ln1": "attn_norm",
    "ln2": "ffn_norm",
    "attn_out": "attn_output",
    "input_norm": "norm",
    "patch_merger": "patch_merger.merging_layer",
    "mm.1": "mm.linear_1",
    "mm.2": "mm.linear_2",
}


def _settings(config: Config) -> Config:
    config.expect("vision_feature_layer", -1)
    config.expect("projector_hidden_act", "gelu")
    vision = config.part("vision_config")
    vision.expect("model_type", "pixtral")
    vision.expect("num_channels", COLORS)
    vision.expect("hidden_act", "gelu", "silu")
    rope(vision).expect("rope_type", "default", "axial")
    vision.expect("head_dim", _head_size(vision))
    return vision


def _head_size(vision: Config) -> int:
    return vision.get("hidden_size", int) // vision.get("num_attention_heads", int)


def _uses_silu(vision: Config) -> bool:
    return vision.get("hidden_act", str, "gelu") == "silu"


def _sizes(config: Config) -> Metadata:
    vision = _settings(config)
    base = rope(vision).get("rope_theta", float, _ROPE_BASE)
    entries = sizes(vision, eps=_EPS)
    return entries if base == _ROPE_BASE else entries | {"vision.rope.freq_base": base}


def metadata(config: Config) -> Metadata:
    """Ollama's files do not name the activation and mean SiLU, so another one gets a key of ours."""
    vision = _settings(config)
    entries = _sizes(config) | {
        "vision.num_channels": COLORS,
        "vision.attention.key_length": _head_size(vision),
        "spatial_merge_size": config.get("spatial_merge_size", int, 2),
        "image_token_index": config.get("image_token_index", int, 10),
        "mm.projector_hidden_act": "gelu",
    }
    return entries if _uses_silu(vision) else entries | {"vision.use_gelu": True}


def projector(config: Config) -> Metadata:
    vision = _settings(config)
    return {
        **_sizes(config),
        **spread(config, MEAN, STD),
        "projector_type": "pixtral",
        "use_silu" if _uses_silu(vision) else "use_gelu": True,
        "vision.projection_dim": config.get("hidden_size", int),
        "vision.spatial_merge_size": config.get("spatial_merge_size", int, 2),
    }


def tensors(config: Config, turned: bool = False) -> Iterator[Mapped]:
    """Yield the encoder's tensors. turned: make elements of a head that rotate together adjacent."""
    vision = _settings(config)
    size, patch = vision.get("hidden_size", int), vision.get("patch_size", int)
    tower, mm = TOWER, "multi_modal_projector"
    yield Mapped("v.patch_embd.weight", (size, COLORS, patch, patch), (f"{tower}.patch_conv.weight",))
    yield Mapped("v.pre_ln.weight", (size,), (f"{tower}.ln_pre.weight",))
    for layer in range(vision.count("num_hidden_layers")):
        yield from in_layer(layer, _layer(vision, turned), f"{tower}.transformer.layers", "v.blk")
    yield Mapped("mm.input_norm.weight", (size,), (f"{mm}.norm.weight",))
    merged = size * config.get("spatial_merge_size", int, 2) ** 2
    yield Mapped("mm.patch_merger.weight", (size, merged), (f"{mm}.patch_merger.merging_layer.weight",))
    rows = config.get("hidden_size", int)
    for index, columns in ((1, size), (2, rows)):
        yield Mapped(f"mm.{index}.weight", (rows, columns), (f"{mm}.linear_{index}.weight",))
        if config.get("multimodal_projector_bias", bool, False):
            yield Mapped(f"mm.{index}.bias", (rows,), (f"{mm}.linear_{index}.bias",))


def _layer(vision: Config, turned: bool) -> Iterator[Row]:
    size, hidden = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    arrange = rotation(vision.get("num_attention_heads", int))
    yield Row("ln1", "attention_norm", (size,))
    for letter in "qkv":
        row = partial(Row, f"attn_{letter}", f"attention.{letter}_proj", (size, size))
        yield row(arrange=arrange) if turned and letter != "v" else row()
    yield Row("attn_out", "attention.o_proj", (size, size))
    yield Row("ln2", "ffn_norm", (size,))
    for name, shape in (("gate", (hidden, size)), ("up", (hidden, size)), ("down", (size, hidden))):
        yield Row(f"ffn_{name}", f"feed_forward.{name}_proj", shape)


def projector_tensors(config: Config) -> Iterator[Mapped]:
    """Yield the projector's tensors, with the embedding of the token between the rows of an image."""
    yield from tensors(config, turned=True)
    token, hidden = _break_token(config), config.get("hidden_size", int)
    yield Mapped(
        "v.token_embd.img_break",
        (hidden,),
        ("embed_tokens.weight",),
        (config.get("vocab_size", int), hidden),
        lambda values: values[token],
    )


def _break_token(config: Config) -> int:
    folder = config.path.parent
    for token in read_json(folder / "tokenizer.json").get("added_tokens", ()):
        if token["content"] == _BREAK:
            return int(token["id"])
    raise ModelError(f"{folder}: the tokenizer has no token {_BREAK}, which separates rows of an image")


VISION = VisionFamily(metadata, projector, tensors, _OLLAMA, projector_tensors)
