"""Gemma 3n's image encoder (Google 2025): MobileNet V5 of timm, and its projector.

The tensors of a checkpoint define the blocks; its configuration names only the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.families import gemma4_vision
from chaski.convert.families.clip import COLORS, TOWER, preprocessor
from chaski.convert.family import VisionFamily
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped
from chaski.formats.safetensors import SafeTensor

__all__ = ["VISION"]

_EPS = 1e-6
_EDGE, _ROWS = 768, 256
_HIDDEN = 2048
_BILINEAR = 2
_KIND = "mobilenetv5_300m_enc"
# llama.cpp requires these keys in a projector, and ignores them.
_IGNORED: Metadata = {"vision.block_count": 128, "vision.attention.head_count": 8}
_BLOCK = r"blocks\.\d+\.\d+\."
_TENSORS = (
    r"conv_stem\.(conv\.(weight|bias)|bn\.weight)",
    _BLOCK + r"(conv_exp|conv_pwl|bn1|bn2|norm)\.weight",
    _BLOCK + r"(dw_start|dw_mid|pw_exp|pw_proj)\.(conv|bn)\.weight",
    _BLOCK + r"attn\.((query|key|value|output)\.proj|(key|value)\.(down_conv|norm))\.weight",
    _BLOCK + r"layer_scale\.gamma",
    r"msfa\.(ffn\.(pw_exp|pw_proj)\.(conv|bn)|norm)\.weight",
)
_TIMM = re.compile(rf"{TOWER}\.timm_model\.((?:{'|'.join(_TENSORS)}))")
_PROJECTION = {
    "embedding": "embedding",
    "hard_embedding_norm": "hard_emb_norm",
    "soft_embedding_norm": "soft_emb_norm",
    "embedding_projection": "input_projection",
}


def _settings(config: Config) -> Config:
    """Return the vision model's settings. Raises UnsupportedError for settings that GGUF cannot express."""
    vision = config.part("vision_config")
    vision.expect("architecture", _KIND)
    vision.expect("do_pooling", False)
    # The token after an image is embedded as the first of the encoder's own vocabulary.
    vision.expect("vocab_offset", config.get("vocab_size_per_layer_input", int))
    return vision


def _metadata(config: Config) -> Metadata:
    vision, reader = _settings(config), preprocessor(config)
    reader.expect("resample", _BILINEAR)
    size = reader.part("size")
    edge = size.get("height", int, _EDGE)
    size.expect("width", edge)
    mean, std = [0.0] * COLORS, [1.0] * COLORS
    if reader.get("do_normalize", bool, False):
        mean, std = (reader.list(key, float) or [0.5] * COLORS for key in ("image_mean", "image_std"))
    hidden = vision.get("hidden_size", int, _HIDDEN)
    return _IGNORED | {
        "vision.attention.layer_norm_epsilon": vision.get("rms_norm_eps", float, _EPS),
        "vision.embedding_length": hidden,
        "vision.feed_forward_length": 4 * vision.get("intermediate_size", int, _HIDDEN),
        "vision.image_mean": mean,
        "vision.image_size": edge,
        "vision.image_std": std,
        "vision.patch_size": edge // reader.get("image_seq_length", int, _ROWS),
        "vision.projection_dim": config.get("hidden_size", int),
        "vision.projector_type": "gemma3nv",
    }


def _projection(config: Config) -> Iterator[Mapped]:
    vision = _settings(config)
    size, row_size = vision.get("hidden_size", int, _HIDDEN), config.get("hidden_size", int)
    shapes = {
        "embedding": (vision.get("vocab_size", int), size),
        "embedding_projection": (row_size, size),
    }
    for source, name in _PROJECTION.items():
        yield Mapped(f"mm.{name}.weight", shapes.get(source, (size,)), (f"embed_vision.{source}.weight",))


def _of(tensors: Mapping[str, SafeTensor]) -> VisionFamily:
    """Return the family with the blocks of these tensors."""
    found = {name: match[1] for name in tensors if (match := _TIMM.fullmatch(name))}

    def planned(config: Config) -> Iterator[Mapped]:
        yield from _projection(config)
        for name, own in sorted(found.items()):
            shape = tensors[name].shape
            stored = (1, *shape, 1, 1) if own == "conv_stem.conv.bias" else shape
            yield Mapped(f"v.{own.replace('blocks.', 'blk.', 1)}", stored, (name,), shape)

    num_blocks = len({match[0] for own in found.values() if (match := re.match(_BLOCK, own))})

    def metadata(config: Config) -> Metadata:
        return _metadata(config) | {"vision.block_count": num_blocks}

    return replace(VISION, metadata=metadata, tensors=planned)


VISION = VisionFamily(_metadata, _metadata, _projection, {}, unused=gemma4_vision.UNUSED, of=_of)
