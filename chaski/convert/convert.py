"""From a checkpoint to a GGUF file: plans everything, then writes tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chaski.convert.checkpoint import Checkpoint, open_model
from chaski.convert.metadata import Metadata
from chaski.convert.mixture import Mixture, Sizes, find_mixture
from chaski.convert.tensors import Planned, Sources
from chaski.convert.tokenizer import tokenizer_metadata
from chaski.errors import FormatError
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType

__all__ = ["Progress", "Summary", "convert"]

Progress: TypeAlias = Callable[[float], None]

_QUANTIZATION_VERSION = 2
_MXFP4_FILE = 38
_LAYERS_OF_70B = 80


@dataclass(frozen=True, slots=True)
class Summary:
    """What was written: bytes are those of the tensors."""

    architecture: str
    num_tensors: int
    num_parameters: int
    nbytes: int


def convert(folder: Path, out: Path, type: str = "F16", progress: Progress = lambda share: None) -> Summary:
    """Convert the checkpoint in `folder` to the GGUF file `out`, which appears when it is complete.

    type: a name of `mixture.MIXTURES`. progress: is called with the share that is done, 0 to 1.
    No more than a part of one tensor is in memory at a time. Raises ModelError, TokenizerError, FormatError
    or UnsupportedError for a checkpoint that cannot be converted: before anything is written, but for values
    that the type cannot hold.
    """
    mixture = find_mixture(type)
    checkpoint = open_model(folder)
    metadata = _metadata(checkpoint, mixture)
    types = _types(checkpoint, mixture, metadata)
    tensors = {
        planned.name: _lazy(planned, types[planned.name], checkpoint.tensors) for planned in checkpoint.plan
    }
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    write_gguf(out, metadata, _with_progress(tensors, nbytes, progress))
    num_parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
    return Summary(checkpoint.family.architecture, len(tensors), num_parameters, nbytes)


def _metadata(checkpoint: Checkpoint, mixture: Mixture) -> Metadata:
    family, config = checkpoint.family, checkpoint.config
    is_packed = any(planned.packed is QuantType.MXFP4 for planned in checkpoint.plan)
    entries: Metadata = {
        "general.architecture": family.architecture,
        "general.type": "model",
        "general.name": checkpoint.folder.resolve().name,
        "general.file_type": _MXFP4_FILE if is_packed else mixture.number,
        "general.quantization_version": _QUANTIZATION_VERSION,
    }
    entries |= {f"{family.architecture}.{key}": value for key, value in family.metadata(config).items()}
    return entries | tokenizer_metadata(checkpoint.folder, config, family.pre_tokenizers)


def _types(checkpoint: Checkpoint, mixture: Mixture, metadata: Metadata) -> dict[str, QuantType]:
    def number(key: str) -> int:
        value = metadata.get(f"{checkpoint.family.architecture}.{key}", 0)
        return value if isinstance(value, int) else 0

    num_layers = number("block_count")
    grouped = number("attention.head_count") != number("attention.head_count_kv")
    sizes = Sizes(num_layers, number("expert_count"), num_layers == _LAYERS_OF_70B and grouped)
    chosen = mixture.types({planned.name: planned.shape for planned in checkpoint.plan}, sizes)
    return chosen | {
        planned.name: planned.packed for planned in checkpoint.plan if planned.packed is not None
    }


def _lazy(planned: Planned, type: QuantType, sources: Sources) -> LazyTensor:
    def chunks() -> Iterator[NDArray[np.uint8]]:
        try:
            yield from planned.chunks(sources, type)
        except FormatError as error:
            raise FormatError(f"tensor {planned.name!r}: {error}") from None

    return LazyTensor(planned.shape, type, chunks)


def _with_progress(tensors: dict[str, LazyTensor], total: int, progress: Progress) -> dict[str, LazyTensor]:
    """The same tensors, which tell `progress` as their bytes are taken."""
    done = 0

    def watched(tensor: LazyTensor) -> Iterator[NDArray[np.uint8]]:
        nonlocal done
        for chunk in tensor.chunks():
            yield chunk
            done += chunk.nbytes
            progress(done / total)

    def watch(tensor: LazyTensor) -> LazyTensor:
        return LazyTensor(tensor.shape, tensor.type, lambda: watched(tensor))

    return {name: watch(tensor) for name, tensor in tensors.items()}
