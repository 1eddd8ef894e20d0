"""The common parts of image encoders built like CLIP (Radford et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chaski.convert.config import Config, read_json
from chaski.convert.family import Row, in_layer
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped

__all__ = [
    "COLORS",
    "MEAN",
    "STD",
    "TOWER",
    "both",
    "embeddings",
    "layers",
    "preprocessor",
    "sizes",
    "spread",
]

COLORS = 3
TOWER = "vision_tower"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def sizes(vision: Config, *, eps: float) -> Metadata:
    """Return sizes under keys without a prefix; `eps` is the default."""
    return {
        "vision.block_count": vision.get("num_hidden_layers", int),
        "vision.embedding_length": vision.get("hidden_size", int),
        "vision.feed_forward_length": vision.get("intermediate_size", int),
        "vision.image_size": vision.get("image_size", int),
        "vision.patch_size": vision.get("patch_size", int),
        "vision.attention.head_count": vision.get("num_attention_heads", int),
        "vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", float, eps),
    }


def preprocessor(config: Config) -> Config:
    """Return the settings of the checkpoint's image processor."""
    path = config.path.parent / "preprocessor_config.json"
    return Config(path, read_json(path))


def spread(config: Config, mean: Sequence[float], std: Sequence[float]) -> Metadata:
    """Return the mean and deviation of pixels from the image processor, or the usual ones."""
    reader = preprocessor(config)
    return {
        "vision.image_mean": [*(reader.list("image_mean", float) or mean)],
        "vision.image_std": [*(reader.list("image_std", float) or std)],
    }


def embeddings(vision: Config, tower: str) -> Iterator[Mapped]:
    """SigLIP's embeddings: of patches, with a bias, and of the places of an image."""
    size, patch = vision.get("hidden_size", int), vision.get("patch_size", int)
    places = (vision.get("image_size", int) // patch) ** 2
    yield from both("v.patch_embd", f"{tower}.embeddings.patch_embedding", (size, COLORS, patch, patch))
    yield Mapped("v.position_embd.weight", (places, size), (f"{tower}.embeddings.position_embedding.weight",))


def layers(vision: Config, count: int, tower: str = TOWER) -> Iterator[Mapped]:
    """Yield the first `count` layers."""
    size, hidden = vision.get("hidden_size", int), vision.get("intermediate_size", int)
    shapes = (
        ("ln1", "layer_norm1", (size,)),
        ("attn_q", "self_attn.q_proj", (size, size)),
        ("attn_k", "self_attn.k_proj", (size, size)),
        ("attn_v", "self_attn.v_proj", (size, size)),
        ("attn_out", "self_attn.out_proj", (size, size)),
        ("ln2", "layer_norm2", (size,)),
        ("ffn_up", "mlp.fc1", (hidden, size)),
        ("ffn_down", "mlp.fc2", (size, hidden)),
    )
    rows = [Row(name, source, shape) for name, source, shape in shapes]
    rows += [Row(name, source, shape[:1], ".bias") for name, source, shape in shapes]
    for layer in range(count):
        yield from in_layer(layer, rows, f"{tower}.encoder.layers", "v.blk")


def both(name: str, source: str, shape: tuple[int, ...]) -> Iterator[Mapped]:
    """Yield a weight and a bias."""
    yield Mapped(f"{name}.weight", shape, (f"{source}.weight",))
    yield Mapped(f"{name}.bias", shape[:1], (f"{source}.bias",))
