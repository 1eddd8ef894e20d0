"""Matrices in their files: where each matrix is, and whether the files have changed."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from chaski import _native
from chaski.errors import ModelError
from chaski.formats.gguf import TensorInfo
from chaski.formats.quant import QuantType, row_bytes
from chaski.ml.graph import Weight

__all__ = ["StoredMatrix", "WeightFiles", "laid_out_type", "unreadable"]


def laid_out_type(type: QuantType) -> QuantType:
    """Return the type of a tensor's panels: kernels support one order of the codes in a block."""
    return QuantType.MXFP4 if type is QuantType.MXFP4_INTERLEAVED else type


class StoredMatrix(Struct, frozen=True):
    """A matrix of a file, the `index`-th of its tensor, and its place in the weights' memory."""

    weight: Weight
    info: TensorInfo
    index: int
    offset: int

    @property
    def type(self) -> QuantType:
        """The type of the matrix after it is laid out."""
        return laid_out_type(self.info.type)

    @property
    def num_bytes(self) -> int:
        return self.info.nbytes // math.prod(self.info.shape[:-2])

    @property
    def place(self) -> int:
        """The offset of its first byte in the file."""
        return self.info.offset + (self.index * self.info.strides[0] if len(self.info.shape) > 2 else 0)

    @property
    def stride(self) -> int:
        """Bytes from one row to the next in the file; rows of other matrices may lie between them."""
        return self.info.strides[-1]

    @property
    def end(self) -> int:
        """The offset after its last byte in the file."""
        rows, columns = self.info.shape[-2:]
        return self.place + (rows - 1) * self.stride + row_bytes(self.info.type, columns)

    @property
    def target(self) -> _native.WeightMatrix:
        handle = self.weight.handle
        target = handle[self.index] if isinstance(handle, list) else handle
        assert isinstance(target, _native.WeightMatrix)
        return target


class WeightFiles:
    """The open files of matrices."""

    def __init__(self, matrices: Sequence[StoredMatrix]) -> None:
        """Open the files. Raises ModelError for a file that cannot be opened."""
        self._matrices = matrices
        self._files = dict(_opened(matrices))
        self._identity = self._identity_now()

    def attach(self, matrices: Sequence[StoredMatrix]) -> None:
        """Set the addresses at which matrices are read until they are laid out."""
        for matrix in matrices:
            matrix.target.take_from(self._files[matrix.info.path], matrix.place)

    @property
    def first(self) -> Path | None:
        """The path of the first file; None if there are no matrices."""
        return next(iter(self._files), None)

    def key(self, isa: str) -> str:
        """Return a key that is equal for equal panels, which means for the same matrices.

        The key depends on the build, because another build may lay matrices out differently.
        """
        build = Path(_native.__file__).stat()
        order = {path: index for index, path in enumerate(self._files)}
        tensors = [
            (order[m.info.path], m.offset, m.info.offset, m.info.shape, m.info.strides, int(m.info.type))
            for m in self._matrices
            if m.index == 0
        ]
        parts = (isa, build.st_size, build.st_mtime_ns, self._identity, tensors)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def are_in_memory(self, share: float) -> bool:
        """Return whether at least `share` of the range from the first to the last matrix is in memory."""
        for path, file in self._files.items():
            own = [matrix for matrix in self._matrices if matrix.info.path == path]
            begin = min(matrix.place for matrix in own)
            end = max(matrix.end for matrix in own)
            if file.resident_share(begin, end - begin) < share:
                return False
        return True

    def read_only_requested(self) -> None:
        """Let the system read only what is requested, instead of what follows in the files too."""
        for file in self._files.values():
            file.read_only_requested()

    def read_ahead(self, matrices: Sequence[StoredMatrix]) -> None:
        """Make the system read these matrices while others are computed or laid out."""
        for matrix in matrices:
            self._files[matrix.info.path].read_ahead(matrix.place, matrix.end - matrix.place)

    def check(self) -> None:
        """Raise ModelError if a read has failed."""
        for path, file in self._files.items():
            if file.error:
                raise unreadable(path, os.strerror(file.error))

    def check_unchanged(self) -> None:
        """Raise ModelError if a file has been written to since it was opened."""
        if self._identity_now() != self._identity:
            names = ", ".join(map(str, self._files))
            raise ModelError(f"{names} changed while the model was being loaded: load it again")

    def _identity_now(self) -> list[list[int]]:
        return [file.identity for file in self._files.values()]


def unreadable(path: Path, reason: str) -> ModelError:
    """Return the error for a file whose weights cannot be read."""
    return ModelError(f"the weights of {path} cannot be read: {reason}")


def _opened(matrices: Sequence[StoredMatrix]) -> Iterator[tuple[Path, _native.WeightFile]]:
    for path in dict.fromkeys(matrix.info.path for matrix in matrices):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise unreadable(path, str(error)) from error
        try:
            yield path, _native.WeightFile(descriptor)
        finally:
            os.close(descriptor)
