"""Tiny models of Qwen 3.5 with a block that proposes tokens: random, except that it is right at times.

The model's layers add little to the embedding of the last token, and the block passes on the embedding of its
token, so it often proposes the model's next token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType

__all__ = ["write_with_heads"]

DATA = Path(__file__).parent / "data" / "architectures"
_OUTPUTS = ("ssm_out.weight", "attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight")


def write_with_heads(
    name: str,
    path: Path,
    *,
    folder: Path = DATA,
    said_by_layers: float = 0.6,
    vocab_size: int = 0,
    has_own_output: bool = False,
    blocks: int = 1,
) -> Path:
    """Write the tiny model `name` of a folder with `blocks` for multi-token prediction; return its path."""
    random = np.random.default_rng(1)

    def noise(*shape: int) -> np.ndarray:
        return 0.05 * random.standard_normal(shape).astype(np.float32)

    with open_gguf(folder / f"{name}.gguf") as file:
        metadata: dict[str, Any] = dict(file.metadata)
        arrays = {key: dequantize(info.data, info.type, info.shape) for key, info in file.tensors.items()}
    arch = metadata["general.architecture"]
    layers, size = metadata[f"{arch}.block_count"], metadata[f"{arch}.embedding_length"]
    arrays = {
        key: values * said_by_layers if key.endswith(_OUTPUTS) else values for key, values in arrays.items()
    }
    attending = max(key.split(".")[1] for key in arrays if key.endswith("attn_q.weight"))
    block = {key: values for key, values in arrays.items() if key.startswith(f"blk.{attending}.")}
    for index in range(layers, layers + blocks):
        for key, values in block.items():
            arrays[key.replace(f"blk.{attending}.", f"blk.{index}.")] = values + noise(*values.shape)
        nextn = f"blk.{index}.nextn."
        arrays[f"{nextn}eh_proj.weight"] = np.eye(size, 2 * size, dtype=np.float32) + noise(size, 2 * size)
        for norm in ("enorm", "hnorm", "shared_head_norm"):
            arrays[f"{nextn}{norm}.weight"] = 1 + noise(size)
    if vocab_size:
        for key in arrays.keys() & {"token_embd.weight", "output.weight"}:
            more = vocab_size - len(arrays[key])
            arrays[key] = np.concatenate([arrays[key], 20 * noise(more, size)])
        tokens = list(metadata["tokenizer.ggml.tokens"])
        more = vocab_size - len(tokens)
        metadata["tokenizer.ggml.tokens"] = [*tokens, *(f"more{index}" for index in range(more))]
        for key, value in (("scores", -1e4), ("token_type", 1)):
            held = metadata[f"tokenizer.ggml.{key}"]
            metadata[f"tokenizer.ggml.{key}"] = np.append(held, np.full(more, value, held.dtype))
    if has_own_output:
        output = arrays.get("output.weight", arrays["token_embd.weight"])
        arrays[f"{nextn}shared_head_head.weight"] = output + noise(*output.shape)
        arrays[f"{nextn}embed_tokens.weight"] = arrays["token_embd.weight"] + noise(*output.shape)
        del arrays[f"{nextn}shared_head_norm.weight"]
    metadata |= {f"{arch}.block_count": layers + blocks, f"{arch}.nextn_predict_layers": blocks}
    recurrent = metadata.get(f"{arch}.attention.recurrent_layers")
    if recurrent is not None:
        metadata[f"{arch}.attention.recurrent_layers"] = [*map(bool, recurrent), *[False] * blocks]
    write_gguf(path, metadata, {key: (values, QuantType.F32) for key, values in arrays.items()})
    return path
