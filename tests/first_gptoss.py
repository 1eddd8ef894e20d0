"""gpt-oss as Ollama's converter wrote it in August and September 2025, from the committed checkpoint.

Until the 26th of August, blocks had the bytes of the checkpoint and Ollama's own type number: an exponent,
then sixteen bytes of neighbours. After that they had ggml's order and number. Until October, the rows of gate
and up alternated in one tensor. From OpenAI's own checkpoint, query, key and value were also one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.convert.convert import convert
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType
from chaski.formats.safetensors import open_checkpoint

CHECKPOINT = Path(__file__).parent / "data" / "checkpoints" / "gpt-oss"
FORMS = {"August": QuantType.MXFP4_INTERLEAVED, "September": QuantType.MXFP4}

_LEFT_OUT = (".expert_feed_forward_length", ".rope.scaling.type")
_RENAMED = {
    ".attn_output.": ".attn_out.",
    ".attn_sinks.weight": ".attn_sinks",
    ".post_attention_norm.": ".ffn_norm.",
}


def write_both(folder: Path, form: str) -> tuple[Path, Path]:
    """Write the file of our converter, and Ollama's of the same weights."""
    ours, theirs = folder / "ours.gguf", folder / "theirs.gguf"
    convert(CHECKPOINT, ours, "BF16")
    with open_gguf(ours) as file:
        tensors = dict(_others(file, is_joined=form == "August")) | dict(_experts(FORMS[form]))
        write_gguf(theirs, _metadata(file), tensors)
    return ours, theirs


def _metadata(file: GGUFFile) -> dict[str, Any]:
    own = {
        key.removeprefix("gpt-oss."): value
        for key, value in file.metadata.items()
        if key.startswith("gpt-oss.")
    }
    own = {f"gptoss.{key}": value for key, value in own.items() if key not in _LEFT_OUT}
    rest = {key: value for key, value in file.metadata.items() if not key.startswith("gpt-oss.")}
    rest["tokenizer.ggml.pre"] = "default"
    return {**rest, **own, "general.architecture": "gptoss", "general.file_type": np.uint32(4)}


def _others(file: GGUFFile, is_joined: bool) -> Iterator[tuple[str, LazyTensor]]:
    """Yield all tensors except experts: the bytes of our file, with other names."""
    for name, info in file.tensors.items():
        parts = [info]
        if "_exps." in name or (is_joined and (".attn_k." in name or ".attn_v." in name)):
            continue
        if is_joined and ".attn_q." in name:
            parts = [file.tensors[name.replace("attn_q", f"attn_{part}")] for part in "qkv"]
            name = name.replace("attn_q", "attn_qkv")
        for ours, theirs in _RENAMED.items():
            name = name.replace(ours, theirs)
        data = np.concatenate([part.data for part in parts])
        rows = sum(part.shape[0] for part in parts)
        yield name, _tensor((rows, *info.shape[1:]), info.type, data)


def _experts(type: QuantType) -> Iterator[tuple[str, LazyTensor]]:
    checkpoint = open_checkpoint(CHECKPOINT)
    for name, tensor in checkpoint.items():
        if not name.endswith(("_blocks", "_proj_bias")) or ".experts." not in name:
            continue
        layer = name.split(".")[2]
        part = "gate_up" if "gate_up" in name else "down"
        target = f"blk.{layer}.ffn_{part}_exps"
        if name.endswith("_bias"):
            yield f"{target}.bias", _tensor(tensor.shape, QuantType.BF16, tensor.data.view(np.uint8))
            continue
        codes = tensor.data if type is QuantType.MXFP4_INTERLEAVED else _in_order_of_ggml(tensor.data)
        scales = checkpoint[name.replace("_blocks", "_scales")].data
        experts, rows, groups, _ = tensor.shape
        blocks = np.concatenate([scales[..., None], codes], axis=3)
        yield f"{target}.weight", _tensor((experts, rows, 32 * groups), type, blocks)


def _in_order_of_ggml(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reorder blocks: byte 2 j gets the low halves of bytes j and j + 8, byte 2 j + 1 the high ones."""
    first, second = codes[..., :8], codes[..., 8:]
    pairs = np.stack([(first & 15) | (second << 4), (first >> 4) | (second & 0xF0)], axis=-1)
    return pairs.reshape(codes.shape)


def _tensor(shape: tuple[int, ...], type: QuantType, data: NDArray[np.uint8]) -> LazyTensor:
    return LazyTensor(shape, type, lambda: [np.ascontiguousarray(data).reshape(-1)])
