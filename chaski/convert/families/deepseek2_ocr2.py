"""DeepSeek-OCR 2 (Wei et al. 2026): the text model of DeepSeek-OCR, and layers of Qwen 2 after SAM."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import deepseek2_ocr
from chaski.convert.families.clip import both
from chaski.convert.family import Row, VisionFamily, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

# Sizes that the published code states instead of the configuration.
_LAYERS, _HEADS, _KV_HEADS, _INNER = 24, 14, 2, 4864
_MOST_TILES, _TILE = 6, (3, 4)  # a tile has 3/4 of the whole image's patches each way


def _sizes(config: Config) -> Metadata:
    vision, sam = config.part("vision_config"), _sam(config)
    return deepseek2_ocr.sizes_of_sam(config, sam) | {
        "projector_type": "deepseekocr2",
        "vision.image_size": vision.get("image_size", int),
        "vision.patch_size": vision.get("patch_size", int, deepseek2_ocr.PATCH),
        "vision.embedding_length": _width(config),
        "vision.feed_forward_length": vision.get("intermediate_size", int, _INNER),
        "vision.block_count": vision.get("layers", int, _LAYERS),
        "vision.attention.head_count": vision.get("num_attention_heads", int, _HEADS),
        "vision.attention.head_count_kv": _KV_HEADS,
        "vision.preproc_max_tiles": _MOST_TILES,
    }


def _sam(config: Config) -> Config:
    config.part("projector_config").expect("projector_type", "linear")
    return config.part("vision_config").part("width").part("sam_vit_b")


def _width(config: Config) -> int:
    return config.part("vision_config").part("width").part("qwen2-0-5b").get("dim", int)


def vision_tensors(config: Config) -> Iterator[Mapped]:
    vision, size, out = config.part("vision_config"), _width(config), config.get("hidden_size", int)
    yield from deepseek2_ocr.sam_tensors(config, _sam(config))
    rows = vision.get("image_size", int) // deepseek2_ocr.PATCH // 4
    source = "qwen2_model"
    for pixels, side in ((1024, rows), (768, rows * _TILE[0] // _TILE[1])):
        yield Mapped(
            f"v.resample_query_{pixels}.weight", (side**2, size), (f"{source}.query_{pixels}.weight",)
        )
    yield Mapped("v.post_ln.weight", (size,), (f"{source}.model.model.norm.weight",))
    layer_rows = list(_layer(config))
    for layer in range(vision.get("layers", int, _LAYERS)):
        yield from in_layer(layer, layer_rows, f"{source}.model.model.layers", "v.blk")
    yield from both("mm.model.fc", "projector.layers", (out, size))
    yield Mapped("v.view_seperator", (1, out), ("view_seperator",), (out,))


def _layer(config: Config) -> Iterator[Row]:
    vision, size = config.part("vision_config"), _width(config)
    heads, inner = (
        vision.get(name, int, default)
        for name, default in (("num_attention_heads", _HEADS), ("intermediate_size", _INNER))
    )
    yield Row("ln1", "input_layernorm", (size,))
    yield Row("ln2", "post_attention_layernorm", (size,))
    for letter, rows in (("q", size), ("k", _KV_HEADS * size // heads), ("v", _KV_HEADS * size // heads)):
        yield Row(f"attn_{letter}", f"self_attn.{letter}_proj", (rows, size))
        yield Row(f"attn_{letter}", f"self_attn.{letter}_proj", (rows,), ".bias")
    yield Row("attn_out", "self_attn.o_proj", (size, size))
    for name in ("gate", "up"):
        yield Row(f"ffn_{name}", f"mlp.{name}_proj", (inner, size))
    yield Row("ffn_down", "mlp.down_proj", (size, inner))


_ENCODER = (r"(sam_model|qwen2_model|projector)\..*", "image_newline", "view_seperator")
VISION = VisionFamily(_sizes, _sizes, vision_tensors, {})
FAMILY = derived_family(
    "deepseek2-ocr",
    deepseek2_ocr.metadata,
    unused=_ENCODER,
    vision=VISION,
    defaults=deepseek2_ocr.DEFAULTS,
)
CHECKPOINTS = ("DeepseekOCR2ForCausalLM",)
