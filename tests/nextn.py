"""Tiny files of families with blocks for multi-token prediction: random, except that they are right at times.

The layers of the model add little to the embedding of the last token, and those of the blocks too. The output
layer has the rows of the embeddings for other tokens. So a block often proposes the model's next token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.families import converted

__all__ = ["NEXTN", "write_with_blocks"]

NEXTN = {
    "bailingmoe2/usual": 1,
    "bailingmoe3/usual": 1,
    "cohere2moe/usual": 1,
    "deepseek2/v3": 1,
    "deepseek32/yarn": 1,
    "deepseek4/yarn": 1,
    "exaone4/small": 2,
    "exaone_moe/usual": 1,
    "glm4/usual": 1,
    "glm4moe/usual": 1,
    "glm5_next/usual": 1,
    "glm_dsa/own": 1,
    "hy_v3/usual": 1,
    "hy_v4/shared": 1,
    "mimo2/usual": 3,
    "nemotron_h_moe/usual": 1,
    "qwen4exp/ngrams": 1,
    "step35/usual": 3,
}
"""Families whose files may have blocks, with the number of blocks in published ones."""

_COPIED = {
    "deepseek4/yarn": (2,),
    "glm5_next/usual": (3,),
    "hy_v4/shared": (1,),
    "nemotron_h_moe/usual": (2, 3),
}
"""The layers whose tensors a block has; the last one, where nothing is said."""

_ONLY_IN_LAYERS = {
    "deepseek4/yarn": ("attn_compressor", "indexer_compressor"),
    "glm5_next/usual": ("hc_",),
    "hy_v4/shared": ("hc_",),
}
"""Beginnings of the names of tensors that a block lacks."""

_OUTPUTS = (
    "attn_output_b.weight",
    "ssm_out.weight",
    "post_attention_norm.weight",
    "post_ffw_norm.weight",
    "attn_output.weight",
    "ffn_down.weight",
    "ffn_down_exps.weight",
    "ffn_down_shexp.weight",
)


def write_with_blocks(
    variant: str, path: Path, blocks: int | None = None, *, said_by_layers: float = 0.12
) -> Path:
    """Write the file of a family's configuration with copies of its last layer as blocks; return its path."""
    random = np.random.default_rng(1)

    def noise(*shape: int) -> np.ndarray:
        return 0.02 * random.standard_normal(shape).astype(np.float32)

    with open_gguf(converted(variant)) as file:
        metadata: dict[str, Any] = dict(file.metadata)
        arrays = {key: dequantize(info.data, info.type, info.shape) for key, info in file.tensors.items()}
    blocks = NEXTN[variant] if blocks is None else blocks
    arch = metadata["general.architecture"]
    layers, size = metadata[f"{arch}.block_count"], metadata[f"{arch}.embedding_length"]
    arrays = {
        key: values * said_by_layers if key.endswith(_OUTPUTS) else values for key, values in arrays.items()
    }
    if "output.weight" in arrays:
        arrays["output.weight"] = np.roll(arrays["token_embd.weight"], 7, axis=0)
    sources, absent = _COPIED.get(variant, (layers - 1,)), _ONLY_IN_LAYERS.get(variant, ())
    copied = {
        key.removeprefix(f"blk.{index}."): values
        for index in sources
        for key, values in arrays.items()
        if key.startswith(f"blk.{index}.") and not key.split(".")[2].startswith(absent)
    }
    if len(sources) > 1:
        copied["post_attention_norm.weight"] = arrays[f"blk.{sources[-1]}.attn_norm.weight"]
    for block in (f"blk.{layers + index}." for index in range(blocks)):
        arrays |= {f"{block}{key}": values + noise(*values.shape) for key, values in copied.items()}
        joined = np.eye(size, 2 * size, dtype=np.float32) + noise(size, 2 * size)
        arrays[f"{block}nextn.eh_proj.weight"] = joined
        norms = {"enorm": size, "hnorm": size, "shared_head_norm": size}
        if "output_hc_norm.weight" in arrays:  # a norm of all streams together, and a mixer instead of a norm
            norms = {"enorm": size, "hnorm": len(arrays["output_hc_norm.weight"])}
            for part in ("norm", "down", "up"):
                mixer = arrays[f"output_hc_{part}.weight"]
                arrays[f"{block}nextn.hc_head_{part}.weight"] = mixer + noise(*mixer.shape)
        for norm, width in norms.items():
            arrays[f"{block}nextn.{norm}.weight"] = 1 + noise(width)
    metadata |= {f"{arch}.block_count": layers + blocks, f"{arch}.nextn_predict_layers": blocks}
    for key, value in metadata.items():
        is_of_layers = key.startswith(f"{arch}.") and ".ple." not in key
        if is_of_layers and isinstance(value, np.ndarray) and value.shape == (layers,):
            metadata[key] = np.append(value, [max(value[list(sources)])] * blocks)
    write_gguf(path, metadata, {key: (values, QuantType.F32) for key, values in arrays.items()})
    return path
