"""Writes GGUF files in several parts, with the names and keys of llama.cpp's `llama-gguf-split`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import numpy as np

from chaski.formats.gguf_writer import LazyTensor, MetadataValue, write_gguf

__all__ = ["write_in_parts"]


def write_in_parts(
    path: Path,
    metadata: Mapping[str, MetadataValue],
    tensors: Mapping[str, LazyTensor],
    max_bytes: int | None,
) -> list[Path]:
    """Write `path`, or parts `STEM-00001-of-00003.gguf` next to it; return the paths that were written.

    max_bytes: the most bytes of tensors in a part; a larger tensor is alone in its part. None: one file. A
    file that is small enough is written as `path`.
    The first part contains the metadata. It is written last, so that it appears when the others are complete.
    Raises FormatError for content that the format cannot hold; no part remains in that case.
    """
    parts = [tensors] if max_bytes is None else list(_parts(tensors, max_bytes))
    if len(parts) == 1:
        write_gguf(path, metadata, tensors)
        return [path]
    stem, count = path.name.removesuffix(".gguf"), len(parts)
    paths = [path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    written: list[Path] = []
    try:
        for index in chain(range(1, count), [0]):
            keys: dict[str, MetadataValue] = {
                "split.no": np.uint16(index),
                "split.count": np.uint16(count),
                "split.tensors.count": np.int32(len(tensors)),
            }
            write_gguf(paths[index], keys if index else {**metadata, **keys}, parts[index])
            written.append(paths[index])
    except BaseException:
        for part in written:
            part.unlink(missing_ok=True)
        raise
    return paths


def _parts(tensors: Mapping[str, LazyTensor], max_bytes: int) -> Iterator[dict[str, LazyTensor]]:
    """Yield successive tensors that fit into a part."""
    part: dict[str, LazyTensor] = {}
    nbytes = 0
    for name, tensor in tensors.items():
        if part and nbytes + tensor.nbytes > max_bytes:
            yield part
            part, nbytes = {}, 0
        part[name] = tensor
        nbytes += tensor.nbytes
    yield part
