"""Making an importance matrix: the inputs of all products are measured while a text is computed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from chaski.errors import ChaskiError, OptionError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.formats.importance import Entry, ImportanceMatrix, read_importance, write_importance
from chaski.kvcache.batch import Batch
from chaski.model.product_inputs import ProductInputs, Squares
from chaski.runner.loading.devices import reserve
from chaski.runner.loading.files import OpenedModel
from chaski.runner.loading.parts import ModelParts, PartOptions
from chaski.same_bits import UsualFloats
from chaski.text.tokenizer import file_tokenizer

__all__ = ["ChunkProgress", "Text", "make_importance"]

_BATCH = 64  # every input of a batch is kept until the batch is computed
_SAVED_CHUNKS = 8

ChunkProgress: TypeAlias = Callable[[int, int], None]
"""Called with the chunks that are done, and those of the text."""


class Text(Struct, frozen=True):
    """The text to measure with. chunk_size: the tokens of a chunk. chunks: how many at most; None for all."""

    path: Path
    chunk_size: int = 512
    chunks: int | None = None


@UsualFloats()
def make_importance(
    model: OpenedModel, text: Text, out: Path, backend: str | None, progress: ChunkProgress
) -> ImportanceMatrix:
    """Measure the importance of a model's columns on a text, and write it to `out`.

    Every chunk is a separate sequence, which begins with BOS if the model adds one. After some chunks the
    sums are saved next to `out`, and a later call with the same model and text continues there; the result
    has the same bits as that of one call. Raises OptionError for a text that is empty or cannot be read, and
    the errors of loading.
    """
    chunks = _chunks(model, text)
    state = _State.of(out, text, _digest(model.file, chunks), len(chunks))
    if state.matrix.chunk_count < len(chunks):
        _measure(model, chunks, state, backend, progress)
    return state.finish(out)


class _State(Struct):
    """The sums so far, in a file that names the model and the text."""

    matrix: ImportanceMatrix
    total: int

    @classmethod
    def of(cls, out: Path, text: Text, digest: str, total: int) -> _State:
        """Continue from the file of an interrupted call, or start."""
        path = out.with_name(f".{out.name}.{digest}.part")
        try:
            matrix = read_importance(path)
        except ChaskiError:
            matrix = ImportanceMatrix(path, {}, [text.path.name], 0, text.chunk_size)
        return cls(matrix, total)

    def add(self, found: dict[str, Squares]) -> None:
        """Add a chunk. Sums are rounded after each, so that saving them in between changes nothing."""
        entries = self.matrix.entries
        for name, squares in found.items():
            entry = entries.get(name)
            sums = squares.sums if entry is None else entry.sums + squares.sums
            counts = squares.counts if entry is None else entry.counts + squares.counts
            entries[name] = Entry(sums.astype(np.float32), counts.astype(np.float32))
        self.matrix.chunk_count += 1
        if self.matrix.chunk_count % _SAVED_CHUNKS == 0 and self.matrix.chunk_count < self.total:
            write_importance(self.matrix)

    def finish(self, out: Path) -> ImportanceMatrix:
        part, self.matrix.path = self.matrix.path, out
        write_importance(self.matrix)
        part.unlink(missing_ok=True)
        return self.matrix


def _chunks(model: OpenedModel, text: Text) -> list[np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """Return the tokens of each whole chunk; of a shorter text, those of all of it."""
    try:
        content = text.path.read_text("utf-8", "replace")
    except OSError as error:
        raise OptionError(f"{text.path}: {error.strerror or error}") from None
    tokenizer = file_tokenizer(model.file)
    ids = np.array(tokenizer.encode(content, add_special=False, parse_special=False), np.int32)
    if len(ids) < 2:
        raise OptionError(f"{text.path} has {len(ids)} tokens; give a text of some thousands")
    whole = max(1, len(ids) // text.chunk_size)
    chunks = [ids[i * text.chunk_size : (i + 1) * text.chunk_size].copy() for i in range(whole)]
    first = tokenizer.encode("", add_special=True)[:1]
    if first and first[0] == tokenizer.bos_id:
        for chunk in chunks:
            chunk[0] = first[0]
    return chunks[: text.chunks]


def _digest(file: GGUFFile, chunks: list[np.ndarray[tuple[int], np.dtype[np.int32]]]) -> str:
    """Return a short name for a model and the tokens that are computed with it."""
    hasher = hashlib.sha256(str((file.path.resolve(), file.path.stat().st_mtime_ns)).encode())
    for name, tensor in file.tensors.items():
        hasher.update(f"{name} {tensor.type.name} {tensor.shape}".encode())
    for chunk in chunks:
        hasher.update(chunk.tobytes() + b"|")
    return hasher.hexdigest()[:12]


def _measure(
    model: OpenedModel,
    chunks: list[np.ndarray[tuple[int], np.dtype[np.int32]]],
    state: _State,
    backend: str | None,
    progress: ChunkProgress,
) -> None:
    longest = max(map(len, chunks))
    parts = ModelParts.of(model, PartOptions(context=longest, parallel=1, num_batch=_BATCH))
    if parts.network.config.pooling is not None:
        raise UnsupportedError(f"{model.file.path}: a model of embeddings has no importance matrix")
    reserved = reserve(parts, backend)
    try:
        reserved.check()
        places = reserved.places
        program = ProductInputs(
            parts.network, parts.file, places.cache, reserved.backend, reserved.size.max_batch
        )
        reserved.backend.load(lambda share: None)
        progress(state.matrix.chunk_count, len(chunks))
        for chunk in chunks[state.matrix.chunk_count :]:
            found: dict[str, Squares] = {}
            for batch in _batches(chunk, reserved.size.max_batch):
                for name, squares in program.squares(batch):
                    _add(found, name, squares)
            places.cache.remove(0, 0)
            state.add(found)
            progress(state.matrix.chunk_count, len(chunks))
    finally:
        reserved.close()


def _batches(chunk: np.ndarray[tuple[int], np.dtype[np.int32]], most: int) -> Iterator[Batch]:
    for begin in range(0, len(chunk), most):
        tokens = chunk[begin : begin + most]
        places = np.arange(len(tokens), dtype=np.int32)
        yield Batch(tokens, begin + places, np.zeros_like(places), places)


def _add(found: dict[str, Squares], name: str, squares: Squares) -> None:
    if name in found:
        squares = Squares(found[name].sums + squares.sums, found[name].counts + squares.counts)
    found[name] = squares
