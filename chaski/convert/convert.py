"""Conversion of a checkpoint to a GGUF file: first a complete plan, then tensor by tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.convert.checkpoint import Checkpoint, computing, plan_conversion
from chaski.convert.config import Config
from chaski.convert.metadata import Metadata
from chaski.convert.pooling import dense_metadata, pooling_metadata
from chaski.convert.tensors import Planned, Sources
from chaski.convert.tokenizer import tokenizer_metadata
from chaski.errors import FormatError, ModelError, OptionError
from chaski.formats.gguf_parts import write_in_parts
from chaski.formats.gguf_writer import LazyTensor
from chaski.formats.mixture import PLAIN, Mixture, Sizes, find_mixture, fitting
from chaski.formats.quant import QuantType
from chaski.text.tokenizer.vocabulary import PREFIX

__all__ = ["ByteProgress", "Summary", "convert"]

ByteProgress: TypeAlias = Callable[[int, int], None]
"""A function that is called with the written and the total bytes of tensors."""
_File: TypeAlias = tuple[Path, Metadata, list[Planned]]
"""A file to write: its path, its metadata and its tensors."""

_QUANTIZATION_VERSION = 2
_MXFP4_FILE = 38
_TEMPLATE = "tokenizer.chat_template"
_WHOLE = re.compile(
    r"_norm\.weight$|ffn_gate_inp|^position_embd|^token_types|shortconv\.conv|ssm_conv1d|^v\.(\w*position|patch)_embd"
    r"|^v\.(position|patch)_embedding|^v\.patch_conv"
)


class Summary(Struct, frozen=True):
    """The sizes of a written file: bytes are those of the tensors.

    left_out: tasks whose adapters were not merged. paths: the files of the text model, or its parts.
    """

    architecture: str
    num_tensors: int
    num_parameters: int
    nbytes: int
    left_out: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()


def convert(
    folder: Path,
    out: Path,
    type: str = "F16",
    progress: ByteProgress = lambda done, total: None,
    projector: Path | None = None,
    target: Path | None = None,
    task: str | None = None,
    split_max_size: int | None = None,
) -> Summary:
    """Convert the checkpoint in `folder` to the GGUF file `out`, which appears once it is complete.

    type: a name of `MIXTURES`. progress: is called with the bytes that are written, and those of all.
    projector: a separate file for the encoder of images, as llama.cpp reads it; otherwise `out` has both, as
    Ollama does. target: the checkpoint that a draft was trained for; its weights need not be there. task:
    that whose adapter is merged with the weights, in a checkpoint that has some. split_max_size: bytes of
    tensors after which `out` continues in another part; see `write_in_parts`. No more than a part of one
    tensor is in memory at a time. Raises ModelError, TokenizerError, FormatError or UnsupportedError for a
    checkpoint that cannot be converted: before anything is written, but for values that the type cannot hold.
    """
    mixture = find_mixture(type)
    checkpoint = plan_conversion(folder, target, task)
    with computing(checkpoint.config):
        files = _files(checkpoint, mixture, out, projector)
    return _write(checkpoint, mixture, files, progress, split_max_size)


def _files(checkpoint: Checkpoint, mixture: Mixture, out: Path, projector: Path | None) -> list[_File]:
    """Return the files to write, each with its path, metadata and tensors."""
    vision, config, folder = checkpoint.vision, checkpoint.config, checkpoint.folder
    arch = checkpoint.family.architecture
    if vision is not None and projector is None:
        arch = vision.architecture or arch
    files = [(out, _metadata(checkpoint, mixture, arch), list(checkpoint.plan))]
    if projector is not None:
        if vision is None:
            raise ModelError(f"{folder}: the checkpoint has no encoder of images that could be converted")
        entries = _general("clip", "mmproj", folder, mixture.number)
        entries |= {f"clip.{key}": value for key, value in vision.projector(config).items()}
        entries["clip.has_vision_encoder"] = True
        files.append((projector, entries, list(vision.in_projector(config))))
    elif vision is not None:
        files[0][1].update({f"{arch}.{key}": value for key, value in vision.metadata(config).items()})
        files[0][2].extend(vision.in_text_file(config))
    return files


def _write(
    checkpoint: Checkpoint, mixture: Mixture, files: list[_File], progress: ByteProgress, max_size: int | None
) -> Summary:
    everything: list[dict[str, LazyTensor]] = []
    for _, metadata, plan in files:
        types = _types(mixture, metadata, plan)
        everything.append({p.name: _lazy(p, types[p.name], checkpoint.tensors) for p in plan})
    tensors = [tensor for of_file in everything for tensor in of_file.values()]
    nbytes = sum(tensor.nbytes for tensor in tensors)
    watch = _watch(nbytes, progress)
    paths: list[list[Path]] = []
    for (path, metadata, _), of_file in zip(files, everything, strict=True):
        # Readers expect a projector in one file.
        parts = {name: watch(tensor) for name, tensor in of_file.items()}
        paths.append(write_in_parts(path, metadata, parts, None if paths else max_size))
    num_parameters = sum(math.prod(tensor.shape) for tensor in tensors)
    tasks = () if "task" in checkpoint.config else tuple(checkpoint.family.tasks(checkpoint.config))
    return Summary(
        checkpoint.family.architecture, len(tensors), num_parameters, nbytes, tasks, tuple(paths[0])
    )


def _metadata(checkpoint: Checkpoint, mixture: Mixture, architecture: str) -> Metadata:
    family, config = checkpoint.family, checkpoint.config
    is_packed = any(planned.packed is QuantType.MXFP4 for planned in checkpoint.plan)
    number = _MXFP4_FILE if is_packed else mixture.number
    entries = _general(architecture, "model", checkpoint.folder, number)
    own = family.metadata(config)
    own |= dense_metadata(config) if family.embeds else {}
    if "pooling_type" not in own and not family.needs_target:
        own |= pooling_metadata(config)
    entries |= {f"{architecture}.{key}": value for key, value in own.items()}
    entries |= family.measured(config, checkpoint.tensors)
    entries |= _tokenizer(checkpoint)
    templates = {f"{_TEMPLATE}.{name}": text for name, text in family.templates(config).items()}
    if not templates:
        return entries
    named = sorted(
        key.removeprefix(f"{_TEMPLATE}.") for key in {*entries, *templates} if key.startswith(f"{_TEMPLATE}.")
    )
    return entries | templates | {f"{_TEMPLATE}s": named}


def _tokenizer(checkpoint: Checkpoint) -> Metadata:
    """Return the tokenizer of the checkpoint or of its target, with one token for each embedding."""
    folder, config, family, target = (
        checkpoint.folder,
        checkpoint.config,
        checkpoint.family,
        checkpoint.target,
    )
    if target is not None:
        folder, family = target.folder, target.family
        config = Config(config.path, {"vocab_size": config.get("vocab_size", int)}).over(target.config)
    entries = tokenizer_metadata(
        folder, config, family.pre_tokenizers, family.num_extra_tokens, family.has_merges
    )
    roles = checkpoint.family.roles(checkpoint.config)
    return entries | {f"{PREFIX}{role}_token_id": token for role, token in roles.items()}


def _general(architecture: str, type: str, folder: Path, file_type: int) -> Metadata:
    return {
        "general.architecture": architecture,
        "general.type": type,
        "general.name": folder.resolve().name,
        "general.file_type": file_type,
        "general.quantization_version": _QUANTIZATION_VERSION,
    }


def _types(mixture: Mixture, metadata: Metadata, plan: list[Planned]) -> dict[str, QuantType]:
    shapes = {planned.name: planned.shape for planned in plan}
    chosen = mixture.choose(shapes, Sizes.of(metadata))
    for name, type in chosen.items():
        if mixture.needs_importance(name, type):
            raise OptionError(
                f"{name} as {type.name} needs an importance matrix; convert to F16, then use `chaski "
                "imatrix` and `chaski quantize`"
            )
    types = {name: chosen.get(name) or _precise(name, shape, mixture.base) for name, shape in shapes.items()}
    # Small tensors that no mixture names are whole in every file that the converter writes.
    types |= {name: QuantType.F32 for name, shape in shapes.items() if _is_whole(name, shape)}
    return types | {planned.name: planned.packed for planned in plan if planned.packed is not None}


def _is_whole(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or not name.endswith(".weight") or _WHOLE.search(name) is not None


def _precise(name: str, shape: tuple[int, ...], base: QuantType) -> QuantType:
    """The type of a matrix that the mixture leaves out, such as one of an image encoder."""
    if base in PLAIN:
        return base
    return fitting(QuantType.Q8_0, shape[-1]) if name.startswith("v.") else QuantType.F16


def _lazy(planned: Planned, type: QuantType, sources: Sources) -> LazyTensor:
    def chunks() -> Iterator[NDArray[np.uint8]]:
        try:
            yield from planned.chunks(sources, type)
        except FormatError as error:
            raise FormatError(f"tensor {planned.name!r}: {error}") from None

    return LazyTensor(planned.shape, type, chunks)


def _watch(total: int, progress: ByteProgress) -> Callable[[LazyTensor], LazyTensor]:
    """Return a wrapper that makes tensors report their written bytes to `progress`."""
    done = 0

    def watched(tensor: LazyTensor) -> Iterator[NDArray[np.uint8]]:
        nonlocal done
        for chunk in tensor.chunks():
            yield chunk
            done += chunk.nbytes
            progress(done, total)

    return lambda tensor: LazyTensor(tensor.shape, tensor.type, lambda: watched(tensor))
