"""Makes GGUF files of real model shapes with random weights, for measuring speed and memory.

    python -m benchmarks.make_models --shape llama-3.2-1b --type Q4_K_M

The tensors and their types are those of the real files, so an engine does the same work; no model has to be
downloaded. `benchmarks/shapes` has the shapes. Every file has a byte-level vocabulary.
"""

from __future__ import annotations

import argparse
import itertools
import os
import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from numpy.typing import NDArray

from benchmarks.quant_mix import TYPES, type_of
from benchmarks.random_blocks import random_rows, row_bytes
from benchmarks.shapes import SHAPES, Matrix, Shape, Vocabulary

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


def make(shape_name: str, type_name: str, directory: Path = DEFAULT_DIRECTORY) -> Path:
    """Write the file unless it is there already, and return its path."""
    path = file_of(shape_name, type_name, directory)
    if path.exists():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    write(unfinished, SHAPES[shape_name], type_name, shape_name)
    unfinished.rename(path)
    return path


def file_of(shape_name: str, type_name: str, directory: Path = DEFAULT_DIRECTORY) -> Path:
    """The path that `make` writes."""
    return directory / f"{shape_name}-{type_name.lower()}.gguf"


def weight_bytes(shape: Shape, type_name: str) -> int:
    """Bytes of matrices that a token is multiplied with. Of experts, only those that it uses count."""
    return sum(
        round(matrix.share * matrix.num_rows * row_bytes(type_of(matrix, type_name, shape), matrix.columns))
        for matrix in shape.matrices()
    )


def num_products(shape: Shape) -> tuple[int, int]:
    """Multiply-adds of a token: with the matrices of all layers, and with the output matrix."""
    products = [
        (matrix.is_head, round(matrix.share * matrix.num_rows * matrix.columns))
        for matrix in shape.matrices()
    ]
    head = sum(count for is_head, count in products if is_head)
    return sum(count for _, count in products) - head, head


def write(path: Path, shape: Shape, type_name: str, name: str) -> None:
    """Write a file of the shape; `name` is the model's in its metadata."""
    writer, vectors, matrices = _begin(path, shape, type_name, name)
    rng = np.random.Generator(np.random.SFC64(1))
    for _, values in vectors:
        writer.write_tensor_data(values)
    for matrix, kind in matrices:
        writer.write_tensor_data(random_rows(kind, matrix.num_rows, matrix.columns, rng))
    writer.close()


def write_hollow(path: Path, shape: Shape, type_name: str, name: str) -> None:
    """Write a file of the shape whose weights are zeros, which take no place on most disks."""
    writer, vectors, matrices = _begin(path, shape, type_name, name)
    writer.close()
    sizes = [values.nbytes for _, values in vectors]
    sizes += [matrix.num_rows * row_bytes(kind, matrix.columns) for matrix, kind in matrices]
    alignment = writer.data_alignment
    whole = [-(-size // alignment) * alignment for size in (path.stat().st_size, *sizes)]
    os.truncate(path, sum(whole))


def _begin(
    path: Path, shape: Shape, type_name: str, name: str
) -> tuple[GGUFWriter, list[tuple[str, NDArray[np.float32]]], list[tuple[Matrix, GGMLQuantizationType]]]:
    """Write all of a file but its tensors -> the writer, and vectors and matrices in their order."""
    writer = GGUFWriter(path, shape.architecture)
    writer.add_name(f"{name}, random weights")
    writer.add_file_type(TYPES[type_name][0])
    _add_metadata(writer, shape)
    _add_vocabulary(writer, shape.vocabulary)

    vectors = list(shape.vectors(np.random.Generator(np.random.SFC64(2))))
    matrices = [(matrix, type_of(matrix, type_name, shape)) for matrix in shape.matrices()]
    for vector, values in vectors:
        writer.add_tensor_info(vector, values.shape, values.dtype, values.nbytes)
    for matrix, kind in matrices:
        size = row_bytes(kind, matrix.columns)
        stored = (*matrix.shape[:-1], size)
        total = matrix.num_rows * size
        writer.add_tensor_info(f"{matrix.name}.weight", stored, np.dtype(np.uint8), total, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer, vectors, matrices


def _add_metadata(writer: GGUFWriter, shape: Shape) -> None:
    for name, value in shape.metadata().items():
        key = f"{shape.architecture}.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)


def _add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary) -> None:
    """A byte-level BPE vocabulary: the 256 bytes, then words of two to four letters, then special tokens."""
    num_words = vocabulary.size - 256 - vocabulary.num_special
    words = list(itertools.islice(_words(), num_words))
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    special += [f"<|reserved_{i}|>" for i in range(vocabulary.num_special - len(special))]
    first_special = 256 + num_words
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre_tokenizer)
    writer.add_token_list([*_byte_symbols(), *words, *special])
    writer.add_token_types([TokenType.NORMAL] * first_special + [TokenType.CONTROL] * len(special))
    writer.add_token_merges(list(itertools.islice(_merges(words), vocabulary.num_merges)))
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
