"""LLaVA 1.5 (Liu et al. 2023): CLIP (Radford et al. 2021) and two layers in front of a Llama."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.config import Config, read_json
from chaski.convert.families import llama
from chaski.convert.family import VISION, Family, Row, Sight, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

_COLORS = 3
_PREPROCESSOR = "preprocessor_config.json"
_TOWER = "vision_tower"
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def _settings(config: Config) -> Config:
    """Of the vision model; what neither GGUF nor readers can say otherwise is refused."""
    config.expect("projector_hidden_act", "gelu")
    config.expect("vision_feature_select_strategy", "default")
    config.expect("multimodal_projector_bias", True)
    vision = config.part("vision_config")
    vision.expect("model_type", "clip_vision_model")
    vision.expect("hidden_act", "quick_gelu", "gelu")
    vision.expect("num_channels", _COLORS)
    return vision


def _num_layers(config: Config) -> int:
    """Those that are used: the layer whose states are taken counts from the last one, -1, on."""
    taken = config.get("vision_feature_layer", int, -2)
    layers = config.part("vision_config").get("num_hidden_layers", int)
    if not -layers <= taken < 0:
        config.expect("vision_feature_layer", -2, -1)
    return layers + 1 + taken


def _sizes(config: Config) -> Metadata:
    vision, reader = _settings(config), Config(config.path, read_json(config.path.parent / _PREPROCESSOR))
    reader.expect("do_center_crop", True)
    return {
        "vision.image_size": vision.get("image_size", int),
        "vision.patch_size": vision.get("patch_size", int),
        "vision.embedding_length": vision.get("hidden_size", int),
        "vision.feed_forward_length": vision.get("intermediate_size", int),
        "vision.projection_dim": vision.get("projection_dim", int, config.get("hidden_size", int)),
        "vision.block_count": _num_layers(config),
        "vision.attention.head_count": vision.get("num_attention_heads", int),
        "vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", float, 1e-5),
        "vision.image_mean": [float(value) for value in reader.list("image_mean") or _MEAN],
        "vision.image_std": [float(value) for value in reader.list("image_std") or _STD],
        "projector_type": "mlp",
        "use_gelu": vision.get("hidden_act", str, "quick_gelu") == "gelu",
    }


def projector(config: Config) -> Metadata:
    return {f"clip.{key}": value for key, value in _sizes(config).items()} | {
        "clip.has_text_encoder": False,
        "clip.has_vision_encoder": True,
        "clip.has_llava_projector": True,
    }


def seen(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, patch, row_size = (
        vision.get("hidden_size", int),
        vision.get("patch_size", int),
        config.get("hidden_size", int),
    )
    positions = 1 + (vision.get("image_size", int) // patch) ** 2
    embeddings = f"{_TOWER}.embeddings"
    yield Mapped("v.class_embd", (size,), (f"{embeddings}.class_embedding",))
    window = (size, _COLORS, patch, patch)
    yield Mapped("v.patch_embd.weight", window, (f"{embeddings}.patch_embedding.weight",))
    yield Mapped("v.position_embd.weight", (positions, size), (f"{embeddings}.position_embedding.weight",))
    yield from _both("v.pre_ln", f"{_TOWER}.pre_layrnorm", (size,))
    for layer in range(_num_layers(config)):
        yield from in_layer(layer, _layer(vision), f"{_TOWER}.encoder.layers", "v.blk")
    yield from _both("mm.0", "multi_modal_projector.linear_1", (row_size, size))
    yield from _both("mm.2", "multi_modal_projector.linear_2", (row_size, row_size))


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


def metadata(config: Config) -> Metadata:
    config.part("text_config").expect("model_type", "llama", "mistral")
    return llama.metadata(config)


# What configurations leave out, as transformers fills it in: sizes of Llama 7B.
_DEFAULTS = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
# Behind the layer whose states are taken.
_UNUSED = (rf"{_TOWER}\.encoder\.layers\.\d+\..*", rf"{_TOWER}\.post_layernorm\..*")
_SIGHT = Sight(_sizes, projector, seen, {}, unused=_UNUSED)
FAMILY = Family("llama", metadata, llama.tensors, VISION, _SIGHT, defaults=_DEFAULTS)
