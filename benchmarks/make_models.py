"""Makes GGUF files of real model shapes with random weights, for measuring speed and memory.

    python -m benchmarks.make_models --shape llama-3.2-1b --type Q4_K_M

The tensors, their types and the size of the vocabulary are those of the real files, so an engine does the
same work; no model has to be downloaded. Tensor types follow the mixes of llama.cpp's quantizer: with tied
embeddings the token table has the type of an output matrix, Q4_K_M gives some layers Q6_K, and a row length
that a type cannot hold falls back to a type that can. The exception is MXFP4: every matrix has it here, where
real files keep it for the matrices of experts.
"""

from __future__ import annotations

import argparse
import itertools
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from numpy.typing import NDArray

from benchmarks.random_blocks import random_rows, row_bytes

__all__ = ["DEFAULT_DIRECTORY", "SHAPES", "TYPES", "Shape", "file_of", "make", "num_products", "weight_bytes"]

DEFAULT_DIRECTORY = Path(__file__).parent / "files"

_T = GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama-architecture model with tied embeddings."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    rope_theta: float
    context_length: int
    pre_tokenizer: str
    vocab_size: int
    num_special: int
    num_merges: int
    rope_factor: float = 0.0  # Llama 3.1 frequency scaling; 0 is none


SHAPES = {
    "llama-3.2-1b": Shape(
        16, 2048, 32, 8, 64, 8192, 5e5, 131072, "llama-bpe", 128256, 256, 280147, rope_factor=32.0
    ),
    "llama-3.2-3b": Shape(
        28, 3072, 24, 8, 128, 8192, 5e5, 131072, "llama-bpe", 128256, 256, 280147, rope_factor=32.0
    ),
    # The layers of SmolLM with the vocabulary of Llama 3: a draft for the two above.
    "draft-180m": Shape(30, 576, 9, 3, 64, 1536, 5e5, 131072, "llama-bpe", 128256, 256, 280147),
    "smollm-135m": Shape(30, 576, 9, 3, 64, 1536, 1e4, 2048, "gpt-2", 49152, 17, 48900),
}

# File type name: the general.file_type number, and the type of the matrices.
TYPES = {
    "F32": (LlamaFileType.ALL_F32, _T.F32),
    "F16": (LlamaFileType.MOSTLY_F16, _T.F16),
    "BF16": (LlamaFileType.MOSTLY_BF16, _T.BF16),
    "Q4_0": (LlamaFileType.MOSTLY_Q4_0, _T.Q4_0),
    "Q4_1": (LlamaFileType.MOSTLY_Q4_1, _T.Q4_1),
    "Q5_0": (LlamaFileType.MOSTLY_Q5_0, _T.Q5_0),
    "Q5_1": (LlamaFileType.MOSTLY_Q5_1, _T.Q5_1),
    "Q8_0": (LlamaFileType.MOSTLY_Q8_0, _T.Q8_0),
    "Q2_K": (LlamaFileType.MOSTLY_Q2_K, _T.Q2_K),
    "Q3_K": (LlamaFileType.MOSTLY_Q3_K_S, _T.Q3_K),
    "Q4_K": (LlamaFileType.MOSTLY_Q4_K_S, _T.Q4_K),
    "Q4_K_M": (LlamaFileType.MOSTLY_Q4_K_M, _T.Q4_K),
    "Q5_K": (LlamaFileType.MOSTLY_Q5_K_S, _T.Q5_K),
    "Q6_K": (LlamaFileType.MOSTLY_Q6_K, _T.Q6_K),
    "IQ4_NL": (LlamaFileType.MOSTLY_IQ4_NL, _T.IQ4_NL),
    "IQ4_XS": (LlamaFileType.MOSTLY_IQ4_XS, _T.IQ4_XS),
    "MXFP4": (LlamaFileType.MOSTLY_MXFP4_MOE, _T.MXFP4),
}

# What takes the place of a type whose blocks of 256 do not divide a row.
_FALLBACK = {
    _T.Q2_K: _T.Q4_0,
    _T.Q3_K: _T.Q4_0,
    _T.Q4_K: _T.Q5_0,
    _T.Q5_K: _T.Q5_1,
    _T.Q6_K: _T.Q8_0,
    _T.IQ4_XS: _T.IQ4_NL,
}

_OWN_OUTPUT = (_T.F32, _T.F16, _T.BF16, _T.Q8_0)  # types that the output matrix shares with the rest


@dataclass(frozen=True, slots=True)
class _Matrix:
    name: str
    kind: GGMLQuantizationType
    rows: int
    columns: int


def make(shape_name: str, type_name: str, directory: Path = DEFAULT_DIRECTORY) -> Path:
    """Write the file unless it is there already, and return its path."""
    path = file_of(shape_name, type_name, directory)
    if path.exists():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    _write(unfinished, shape_name, type_name)
    unfinished.rename(path)
    return path


def file_of(shape_name: str, type_name: str, directory: Path = DEFAULT_DIRECTORY) -> Path:
    """The path that `make` writes."""
    return directory / f"{shape_name}-{type_name.lower()}.gguf"


def weight_bytes(shape_name: str, type_name: str) -> int:
    """Bytes of all matrices; the tied embeddings are there once."""
    matrices = _matrices(SHAPES[shape_name], type_name)
    return sum(matrix.rows * row_bytes(matrix.kind, matrix.columns) for matrix in matrices)


def num_products(shape_name: str) -> tuple[int, int]:
    """Multiply-adds of a token: with the matrices of all layers, and with the output matrix."""
    head, *layers = (matrix.rows * matrix.columns for matrix in _matrices(SHAPES[shape_name], "F32"))
    return sum(layers), head


def _write(path: Path, shape_name: str, type_name: str) -> None:
    shape = SHAPES[shape_name]
    writer = GGUFWriter(path, "llama")
    writer.add_name(f"{shape_name}, random weights")
    writer.add_file_type(TYPES[type_name][0])
    _add_config(writer, shape)
    _add_vocabulary(writer, shape)

    norms = list(_norms(shape))
    matrices = list(_matrices(shape, type_name))
    for name, values in norms:
        writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
    for matrix in matrices:
        size = row_bytes(matrix.kind, matrix.columns)
        writer.add_tensor_info(
            matrix.name, (matrix.rows, size), np.dtype(np.uint8), matrix.rows * size, matrix.kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()

    rng = np.random.Generator(np.random.SFC64(1))
    for _, values in norms:
        writer.write_tensor_data(values)
    for matrix in matrices:
        writer.write_tensor_data(random_rows(matrix.kind, matrix.rows, matrix.columns, rng))
    writer.close()


def _add_config(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.ffn_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab_size)


def _norms(shape: Shape) -> Iterator[tuple[str, NDArray[np.float32]]]:
    ones = np.ones(shape.hidden_size, np.float32)
    yield "output_norm.weight", ones
    for layer in range(shape.num_layers):
        yield f"blk.{layer}.attn_norm.weight", ones
        yield f"blk.{layer}.ffn_norm.weight", ones
    if shape.rope_factor:
        yield "rope_freqs.weight", _rope_factors(shape)


def _rope_factors(shape: Shape) -> NDArray[np.float32]:
    """Return the divisor of each RoPE frequency (Llama 3.1: low factor 1, high factor 4, trained on 8192)."""
    low, high, trained = 1.0, 4.0, 8192
    wavelength = 2 * np.pi * shape.rope_theta ** (np.arange(0, shape.head_dim, 2) / shape.head_dim)
    smooth = np.clip((trained / wavelength - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / shape.rope_factor + smooth)).astype(np.float32)


def _matrices(shape: Shape, type_name: str) -> Iterator[_Matrix]:
    kind = TYPES[type_name][1]
    heads, kv_heads = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    hidden, ffn = shape.hidden_size, shape.ffn_size
    yield _matrix("token_embd", _output_type(kind), shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        more = _T.Q6_K if type_name == "Q4_K_M" and _gets_more_bits(layer, shape.num_layers) else kind
        yield _matrix(f"blk.{layer}.attn_q", kind, heads, hidden)
        yield _matrix(f"blk.{layer}.attn_k", kind, kv_heads, hidden)
        yield _matrix(f"blk.{layer}.attn_v", more, kv_heads, hidden)
        yield _matrix(f"blk.{layer}.attn_output", kind, hidden, heads)
        yield _matrix(f"blk.{layer}.ffn_gate", kind, ffn, hidden)
        yield _matrix(f"blk.{layer}.ffn_up", kind, ffn, hidden)
        yield _matrix(f"blk.{layer}.ffn_down", more, hidden, ffn)


def _matrix(name: str, kind: GGMLQuantizationType, rows: int, columns: int) -> _Matrix:
    fits = columns % GGML_QUANT_SIZES[kind][0] == 0
    return _Matrix(f"{name}.weight", kind if fits else _FALLBACK[kind], rows, columns)


def _output_type(kind: GGMLQuantizationType) -> GGMLQuantizationType:
    if kind in _OWN_OUTPUT:
        return kind
    return _T.Q8_0 if kind is _T.MXFP4 else _T.Q6_K


def _gets_more_bits(layer: int, num_layers: int) -> bool:
    """The layers that Q4_K_M favours: the first and last eighth, and each third one between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def _add_vocabulary(writer: GGUFWriter, shape: Shape) -> None:
    """A byte-level BPE vocabulary: the 256 bytes, then words of two to four letters, then special tokens."""
    num_words = shape.vocab_size - 256 - shape.num_special
    words = list(itertools.islice(_words(), num_words))
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    special += [f"<|reserved_{i}|>" for i in range(shape.num_special - len(special))]
    first_special = 256 + num_words
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(shape.pre_tokenizer)
    writer.add_token_list([*_byte_symbols(), *words, *special])
    writer.add_token_types([TokenType.NORMAL] * first_special + [TokenType.CONTROL] * len(special))
    writer.add_token_merges(list(itertools.islice(_merges(words), shape.num_merges)))
    writer.add_bos_token_id(first_special)
    writer.add_eos_token_id(first_special + 1)


def _words() -> Iterator[str]:
    for length in (2, 3, 4):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))


def _merges(words: list[str]) -> Iterator[str]:
    for word in words:
        for cut in range(1, len(word)):
            yield f"{word[:cut]} {word[cut:]}"


def _byte_symbols() -> list[str]:
    """Return byte-level BPE's character for each byte: itself if printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(0x100)
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make GGUF files of real shapes with random weights.")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=["llama-3.2-1b"])
    parser.add_argument("--type", choices=TYPES, nargs="+", default=["Q4_K_M"])
    parser.add_argument("--out", type=Path, default=DEFAULT_DIRECTORY, help="directory of the files")
    return parser.parse_args()


def main() -> None:
    """Make every asked shape in every asked type."""
    arguments = _arguments()
    for shape, kind in itertools.product(arguments.shape, arguments.type):
        path = make(shape, kind, arguments.out)
        print(f"{path}  {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
