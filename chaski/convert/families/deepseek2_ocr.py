"""DeepSeek-OCR (Wei et al. 2025), text: DeepSeek V2 without latent attention. Its encoder is SAM and CLIP."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import full_expert_metadata
from chaski.convert.families.clip import COLORS, both, spread
from chaski.convert.family import Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata, common_metadata, rope
from chaski.convert.tensors import Mapped

# Sizes that the published code states instead of the configuration.
PATCH, _NECK, _GROWTH, _WINDOW = 16, 256, 4, 14
_TILES = 2, 9
_HALF = (0.5, 0.5, 0.5)


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("moe_layer_freq", 1)
    config.expect("use_mla", False)
    config.expect("q_lora_rank", None)
    config.expect("rope_theta", 10000.0)
    rope(config).expect("rope_type", "default")
    entries = common_metadata(config) | full_expert_metadata(config)
    if not entries.get("expert_weights_norm", True):
        del entries["expert_weights_norm"]
    return entries | {
        "rope.dimension_count": config.get("qk_rope_head_dim", int),
        "vocab_size": config.get("vocab_size", int),
    }


def _parts(config: Config) -> tuple[Config, Config]:
    """Return the settings of SAM and of CLIP."""
    widths = config.part("vision_config").part("width")
    config.part("projector_config").expect("projector_type", "linear")
    return widths.part("sam_vit_b"), widths.part("clip-l-14-224")


def sizes_of_sam(config: Config, sam: Config) -> Metadata:
    """Return the keys of SAM, and others that all encoders after it have."""
    vision = config.part("vision_config")
    return {
        "vision.projection_dim": config.get("hidden_size", int),
        "vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", float, 1e-6),
        "vision.window_size": vision.get("window_size", int, _WINDOW),
        "vision.preproc_min_tiles": _TILES[0],
        "vision.sam.block_count": sam.count("layers"),
        "vision.sam.embedding_length": sam.get("width", int),
        "vision.sam.head_count": sam.get("heads", int),
        "use_gelu": True,
        **spread(config, _HALF, _HALF),
    }


def _sizes(config: Config) -> Metadata:
    sam, clip = _parts(config)
    return sizes_of_sam(config, sam) | {
        "projector_type": "deepseekocr",
        "vision.image_size": clip.get("image_size", int),
        "vision.patch_size": clip.get("patch_size", int),
        "vision.embedding_length": clip.get("width", int),
        "vision.feed_forward_length": 4 * clip.get("heads", int),  # as in llama.cpp; its code has 4 widths
        "vision.block_count": clip.count("layers"),
        "vision.attention.head_count": clip.get("heads", int),
        "vision.preproc_max_tiles": _TILES[1],
    }


def vision_tensors(config: Config) -> Iterator[Mapped]:
    sam, clip = _parts(config)
    yield from sam_tensors(config, sam)
    yield from _clip(clip)
    out, size = config.get("hidden_size", int), clip.get("width", int)
    yield from both("mm.model.fc", "projector.layers", (out, 2 * size))
    yield Mapped("v.image_newline", (out,), ("image_newline",))
    yield Mapped("v.view_seperator", (1, out), ("view_seperator",), (out,))


def sam_tensors(config: Config, sam: Config) -> Iterator[Mapped]:
    size, heads, vision = sam.get("width", int), sam.get("heads", int), config.part("vision_config")
    side = vision.get("image_size", int) // PATCH
    window = vision.get("window_size", int, _WINDOW)
    source, name = "sam_model", "v.sam"
    yield from both(f"{name}.patch_embd", f"{source}.patch_embed.proj", (size, COLORS, PATCH, PATCH))
    yield Mapped(f"{name}.pos_embd.weight", (1, side, side, size), (f"{source}.pos_embed",))
    shapes = (
        ("pre_ln", "norm1", (size,)),
        ("attn.qkv", "attn.qkv", (3 * size, size)),
        ("attn.out", "attn.proj", (size, size)),
        ("post_ln", "norm2", (size,)),
        ("mlp.lin1", "mlp.lin1", (_GROWTH * size, size)),
        ("mlp.lin2", "mlp.lin2", (size, _GROWTH * size)),
    )
    rows = [Row(*each) for each in shapes] + [
        Row(own, other, shape[:1], ".bias") for own, other, shape in shapes
    ]
    whole = sam.list("global_attn_indexes", int)
    for layer in range(sam.count("layers")):
        yield from in_layer(layer, rows, f"{source}.blocks", f"{name}.blk")
        distances = 2 * (side if layer in whole else window) - 1
        for axis in "hw":
            own = f"{name}.blk.{layer}.attn.pos_{axis}.weight"
            yield Mapped(own, (distances, size // heads), (f"{source}.blocks.{layer}.attn.rel_pos_{axis}",))
    channels = (_NECK, *sam.list("downsample_channels", int))
    yield Mapped(f"{name}.neck.0.weight", (_NECK, size, 1, 1), (f"{source}.neck.0.weight",))
    yield Mapped(f"{name}.neck.2.weight", (_NECK, _NECK, 3, 3), (f"{source}.neck.2.weight",))
    for index in (1, 3):
        yield from both(f"{name}.neck.{index}", f"{source}.neck.{index}", (_NECK,))
    for index, (before, after) in enumerate(pairwise(channels), 2):
        yield Mapped(f"{name}.net_{index}.weight", (after, before, 3, 3), (f"{source}.net_{index}.weight",))


def _clip(clip: Config) -> Iterator[Mapped]:
    size, patch = clip.get("width", int), clip.get("patch_size", int)
    places = 1 + (clip.get("image_size", int) // patch) ** 2
    source = "vision_model"
    yield Mapped("v.class_embd", (size,), (f"{source}.embeddings.class_embedding",))
    name = f"{source}.embeddings.patch_embedding.weight"  # unused, but llama.cpp's files contain it
    yield Mapped("v.patch_embd.weight", (size, COLORS, patch, patch), (name,))
    name = f"{source}.embeddings.position_embedding.weight"
    yield Mapped("v.position_embd.weight", (places, size), (name,))
    yield from both("v.pre_ln", f"{source}.pre_layrnorm", (size,))
    shapes = (
        ("ln1", "layer_norm1", (size,)),
        ("attn_qkv", "self_attn.qkv_proj", (3 * size, size)),
        ("attn_out", "self_attn.out_proj", (size, size)),
        ("ln2", "layer_norm2", (size,)),
        ("ffn_up", "mlp.fc1", (_GROWTH * size, size)),
        ("ffn_down", "mlp.fc2", (size, _GROWTH * size)),
    )
    rows = [Row(*each) for each in shapes] + [
        Row(own, other, shape[:1], ".bias") for own, other, shape in shapes
    ]
    for layer in range(clip.count("layers")):
        yield from in_layer(layer, rows, f"{source}.transformer.layers", "v.blk")


_ENCODER = (r"(sam_model|vision_model|projector)\..*", "image_newline", "view_seperator")
DEFAULTS = {"rms_norm_eps": 1e-6, "use_mla": True}
VISION = VisionFamily(_sizes, _sizes, vision_tensors, {})
FAMILY = derived_family("deepseek2-ocr", metadata, unused=_ENCODER, vision=VISION, defaults=DEFAULTS)
CHECKPOINTS = ("DeepseekOCRForCausalLM",)
