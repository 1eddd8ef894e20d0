"""The image encoders that `benchmarks.vision` measures, with the sizes of published models.

Sizes come from `config.json` of the models in the comments, on Hugging Face. All layers are alike, so only as
many are computed as a short measurement needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from chaski.formats.gguf_writer import MetadataValue

__all__ = ["ENCODERS", "Encoder"]

Entries = Mapping[str, MetadataValue]

_CLIP = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
_HALF = [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]
_IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_ZERO_TO_ONE = [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder and the picture that it encodes.

    kind        name of the projector type in files
    size        elements of a patch's state; ffn_size: elements between the two matrices of a layer
    image_size  edge of images in the file's metadata; `picture`: edge of the measured picture
    row_size    elements of a row of the text model
    computed    number of measured layers, of `num_layers`
    entries     further metadata, without the prefix `clip.`
    tensors     tensors whose shapes give further sizes
    unbiased    name prefixes of matrices without a bias
    constants   optional tensors, by the ends of their names
    is_joined   queries, keys and values share one tensor
    line_end    the peer adds a row after each line of this many rows
    deep        rows have further parts, which the text model adds after layers
    """

    kind: str
    size: int
    ffn_size: int
    num_heads: int
    num_layers: int
    patch_size: int
    image_size: int
    row_size: int
    picture: int
    computed: int = 2
    eps: float = 1e-6
    normal: tuple[list[float], list[float]] = _HALF
    entries: Entries = field(default_factory=dict)
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unbiased: tuple[str, ...] = ()
    constants: Mapping[str, float] = field(default_factory=dict)
    is_joined: bool = False
    line_end: int = 0
    deep: int = 0

    def metadata(self) -> dict[str, MetadataValue]:
        """Return the metadata of its file."""
        sizes: dict[str, MetadataValue] = {
            "projector_type": self.kind,
            "has_vision_encoder": True,
            "vision.block_count": self.computed,
            "vision.embedding_length": self.size,
            "vision.feed_forward_length": self.ffn_size,
            "vision.projection_dim": self.row_size,
            "vision.image_size": self.image_size,
            "vision.patch_size": self.patch_size,
            "vision.image_mean": self.normal[0],
            "vision.image_std": self.normal[1],
            "vision.attention.head_count": self.num_heads,
            "vision.attention.layer_norm_epsilon": self.eps,
        }
        entries = {f"clip.{name}": value for name, value in (sizes | dict(self.entries)).items()}
        return {"general.architecture": "clip"} | entries


def _scale(factor: int, **more: MetadataValue) -> Entries:
    return {"vision.projector.scale_factor": factor, "use_gelu": True, **more}


_CLIPPED = {"input_min": -60.0, "input_max": 60.0, "output_min": -60.0, "output_max": 60.0}
_MERGED: Entries = {"vision.spatial_merge_size": 2}

ENCODERS = {
    # google/gemma-3-4b-it
    "gemma-3": Encoder(
        "gemma3", 1152, 4304, 16, 27, 14, 896, 2560, 896, computed=1, entries=_scale(4), unbiased=("mm.",)
    ),
    # google/gemma-4-E4B-it
    "gemma-4-e4b": Encoder(
        "gemma4v",
        *(768, 3072, 12, 16, 16, 224, 2560, 768),
        normal=_ZERO_TO_ONE,
        entries=_scale(3),
        tensors={"v.position_embd.weight": (2, 10240, 768)},
        unbiased=("",),
        constants=_CLIPPED,
    ),
    # google/gemma-4-31B-it
    "gemma-4-31b": Encoder(
        "gemma4v",
        *(1152, 4304, 16, 27, 16, 224, 5376, 768),
        normal=_ZERO_TO_ONE,
        entries=_scale(3),
        tensors={"v.position_embd.weight": (2, 10240, 1152)},
        unbiased=("",),
        constants={"std_bias": 0.0, "std_scale": 1.0},
    ),
    # Qwen/Qwen2-VL-7B-Instruct
    "qwen2-vl": Encoder(
        "qwen2vl_merger",
        *(1280, 5120, 16, 32, 14, 560, 3584, 672),
        normal=_CLIP,
        entries=_MERGED,
        unbiased=("v.patch_embd",),
    ),
    # Qwen/Qwen2.5-VL-7B-Instruct; every eighth layer has full attention
    "qwen2.5-vl": Encoder(
        "qwen2.5vl_merger",
        *(1280, 3420, 16, 32, 14, 560, 3584, 672),
        computed=8,
        normal=_CLIP,
        entries={**_MERGED, "use_silu": True, "vision.n_wa_pattern": 8, "vision.window_size": 112},
        unbiased=("v.patch_embd",),
    ),
    # Qwen/Qwen3-VL-8B-Instruct; three of its layers become parts of rows
    "qwen3-vl": Encoder(
        "qwen3vl_merger",
        *(1152, 4304, 16, 27, 16, 768, 4096, 768),
        entries={**_MERGED, "use_gelu": True, "vision.is_deepstack_layers": [False, True]},
        tensors={"v.position_embd.weight": (2304, 1152), "v.patch_embd.weight.1": (1152, 3, 16, 16)},
        is_joined=True,
        deep=1,
    ),
    # Qwen/Qwen3.5-4B
    "qwen3.5": Encoder(
        "qwen3vl_merger",
        *(1024, 4096, 16, 24, 16, 768, 2560, 768),
        entries={**_MERGED, "use_gelu": True, "vision.is_deepstack_layers": [False, False]},
        tensors={"v.position_embd.weight": (2304, 1024), "v.patch_embd.weight.1": (1024, 3, 16, 16)},
        is_joined=True,
    ),
    # meta-llama/Llama-4-Scout-17B-16E-Instruct
    "llama-4": Encoder(
        "llama4",
        *(1408, 5632, 16, 34, 14, 336, 5120, 336),
        computed=4,
        eps=1e-5,
        entries=_scale(2),
        tensors={
            "v.class_embd": (1408,),
            "mm.model.mlp.1.weight": (4096, 5632),
            "mm.model.mlp.2.weight": (4096, 4096),
        },
        unbiased=("mm.", "v.patch_embd"),
    ),
    # mistralai/Mistral-Small-3.1-24B-Instruct-2503
    "mistral-3": Encoder(
        "pixtral",
        *(1024, 4096, 16, 24, 14, 1540, 5120, 672),
        eps=1e-5,
        normal=_CLIP,
        entries={**_MERGED, "use_silu": True},
        unbiased=("",),
        constants={"img_break": 0.0},
        line_end=24,
    ),
    # llava-hf/llava-v1.6-vicuna-7b-hf; one square of an image
    "llava-1.6": Encoder(
        "mlp",
        *(1024, 4096, 16, 23, 14, 336, 4096, 336),
        computed=4,
        eps=1e-5,
        normal=_CLIP,
        entries={"vision.feature_layer": [4]},
        tensors={"v.class_embd": (1024,)},
        unbiased=("v.patch_embd",),
    ),
    # ibm-granite/granite-vision-3.3-2b; one square of an image; its rows are states of four layers
    "granite-vision": Encoder(
        "mlp",
        *(1152, 4304, 16, 27, 14, 384, 2048, 384),
        computed=4,
        entries={"use_gelu": True, "vision.feature_layer": [1, 2, 3, 4]},
    ),
    # LiquidAI/LFM2-VL-1.6B
    "lfm2-vl": Encoder(
        "lfm2",
        *(1152, 4304, 16, 26, 16, 256, 2048, 512),
        computed=4,
        entries=_scale(2),
        tensors={"v.position_embd.weight": (256, 1152), "mm.1.weight": (2560, 4608)},
    ),
    # HuggingFaceTB/SmolVLM2-500M-Video-Instruct; four tiles of an image and the whole image
    "smolvlm": Encoder(
        "idefics3",
        *(768, 3072, 12, 12, 16, 512, 960, 1024),
        entries=_scale(4, **{"vision.preproc_image_size": 1024}),
        unbiased=("mm.",),
    ),
    # OpenGVLab/InternVL3-2B; one tile of an image
    "internvl": Encoder(
        "internvl",
        *(1024, 4096, 16, 24, 14, 448, 1536, 448),
        computed=4,
        normal=_IMAGENET,
        entries=_scale(2),
        tensors={"v.blk.0.ln1.bias": (1024,)},
    ),
    # openbmb/MiniCPM-V-2_6; one slice of an image
    "minicpm-v": Encoder(
        "resampler",
        *(1152, 4304, 16, 26, 14, 448, 3584, 448),
        computed=4,
        entries={"use_gelu": True, "minicpmv_version": np.int32(3)},
        tensors={
            "v.position_embd.weight": (4900, 1152),
            "resampler.query": (64, 3584),
            "resampler.pos_embed_k": (4900, 3584),
        },
        unbiased=("resampler.kv", "resampler.proj"),
    ),
}
