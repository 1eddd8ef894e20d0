"""Make GGUF files of real model shapes with random weights, for measuring speed and memory.

    python -m benchmarks.make_models --shape llama-3.2-1b --type Q4_K_M

The tensors and their types are those of the real files, so an engine does the same work without a download.
`benchmarks/shapes` defines the shapes. Every file has a byte-level vocabulary.
"""

from __future__ import annotations

import argparse
import itertools
import os
import string
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.quant_mix import TYPES, type_of
from benchmarks.random_blocks import random_rows
from benchmarks.shapes import SHAPES, Matrix, Shape, Vocabulary
from chaski.formats.gguf_tensors import DEFAULT_ALIGNMENT, align_up
from chaski.formats.gguf_writer import LazyTensor, MetadataValue, header, write_gguf
from chaski.formats.quant import QuantType, row_bytes

__all__ = [
    "DEFAULT_DIRECTORY",
    "SHAPES",
    "TYPES",
    "file_of",
    "make",
    "num_products",
    "weight_bytes",
    "write",
    "write_hollow",
]

DEFAULT_DIRECTORY = Path(__file__).parent / "files"

_NORMAL, _CONTROL = 1, 3  # types of tokens


def make(shape_name: str, type_name: str, directory: Path = DEFAULT_DIRECTORY) -> Path:
    """Write the file unless it exists, and return its path."""
    path = file_of(shape_name, type_name, directory)
    if path.exists():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    write(unfinished, SHAPES[shape_name], type_name, shape_name)
    unfinished.rename(path)
    return path


def file_of(shape_name: str, type_name: str, directory: Path = DEFAULT_DIRECTORY) -> Path:
    """Return the path that `make` writes."""
    return directory / f"{shape_name}-{type_name.lower()}.gguf"


def weight_bytes(shape: Shape, type_name: str) -> int:
    """Return the bytes of the matrices that multiply a token. Only the experts that it uses count."""
    return sum(
        round(matrix.share * matrix.num_rows * row_bytes(type_of(matrix, type_name, shape), matrix.columns))
        for matrix in shape.matrices()
    )


def num_products(shape: Shape) -> tuple[int, int]:
    """Return the multiply-adds of a token: with the matrices of all layers, and with the output matrix."""
    products = [
        (matrix.is_head, round(matrix.share * matrix.num_rows * matrix.columns))
        for matrix in shape.matrices()
    ]
    head = sum(count for is_head, count in products if is_head)
    return sum(count for _, count in products) - head, head


def write(path: Path, shape: Shape, type_name: str, name: str) -> None:
    """Write a file of the shape; `name` is the model's in its metadata."""
    write_gguf(path, _metadata(shape, type_name, name), _tensors(shape, type_name))


def write_hollow(path: Path, shape: Shape, type_name: str, name: str) -> None:
    """Write a file of the shape whose weights are zeros, which take no space on most disks."""
    tensors = _tensors(shape, type_name)
    path.write_bytes(header(_metadata(shape, type_name, name), tensors))
    sizes = [path.stat().st_size, *(tensor.nbytes for tensor in tensors.values())]
    os.truncate(path, sum(align_up(size, DEFAULT_ALIGNMENT) for size in sizes))


def _tensors(shape: Shape, type_name: str) -> dict[str, LazyTensor]:
    """Yield vectors and then matrices, which must be written in this order."""
    tensors = {}
    for name, values in shape.vectors(np.random.Generator(np.random.SFC64(2))):
        data = np.ascontiguousarray(values).view(np.uint8)
        tensors[name] = LazyTensor(values.shape, QuantType.F32, partial(iter, [data]))
    rng = np.random.Generator(np.random.SFC64(1))
    for matrix in shape.matrices():
        kind = type_of(matrix, type_name, shape)
        chunks = partial(_random_matrix, matrix, kind, rng)
        tensors[f"{matrix.name}.weight"] = LazyTensor(matrix.shape, kind, chunks)
    return tensors


def _random_matrix(matrix: Matrix, kind: QuantType, rng: np.random.Generator) -> Iterator[NDArray[np.uint8]]:
    yield random_rows(kind, matrix.num_rows, matrix.columns, rng)


def _metadata(shape: Shape, type_name: str, name: str) -> dict[str, MetadataValue]:
    own = {f"{shape.architecture}.{key}": value for key, value in shape.metadata().items()}
    return {
        "general.architecture": shape.architecture,
        "general.name": f"{name}, random weights",
        "general.file_type": TYPES[type_name][0],
        **own,
        **_vocabulary(shape.vocabulary),
    }


def _vocabulary(vocabulary: Vocabulary) -> dict[str, MetadataValue]:
    """Return a byte-level BPE vocabulary: 256 bytes, words of two to four letters, special tokens."""
    num_words = vocabulary.size - 256 - vocabulary.num_special
    words = list(itertools.islice(_words(), num_words))
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    special += [f"<|reserved_{i}|>" for i in range(vocabulary.num_special - len(special))]
    first_special = 256 + num_words
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": vocabulary.pre_tokenizer,
        "tokenizer.ggml.tokens": [*_byte_symbols(), *words, *special],
        "tokenizer.ggml.token_type": [_NORMAL] * first_special + [_CONTROL] * len(special),
        "tokenizer.ggml.merges": list(itertools.islice(_merges(words), vocabulary.num_merges)),
        "tokenizer.ggml.bos_token_id": first_special,
        "tokenizer.ggml.eos_token_id": first_special + 1,
    }


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
    """Make every requested shape in every requested type."""
    arguments = _arguments()
    for shape, kind in itertools.product(arguments.shape, arguments.type):
        path = make(shape, kind, arguments.out)
        print(f"{path}  {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
