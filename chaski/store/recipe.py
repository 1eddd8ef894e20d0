"""`Recipe`: the checked parts and files of a model to create, and its construction from a Modelfile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, field

from chaski.errors import ModelNotFoundError, OptionError, UnsupportedError
from chaski.names import Digest, ModelName
from chaski.pasted import pasted_name
from chaski.store.folder import CONVERTIBLE, folder_model
from chaski.store.modelfile import Modelfile
from chaski.store.parameters import Parameter

__all__ = ["CheckpointFiles", "ModelSource", "Recipe", "gguf_sources", "recipe_of"]

_FILE_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,254}){0,3}")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class CheckpointFiles(Struct, frozen=True):
    """The files of a checkpoint, or all parts of a split GGUF file: blobs by relative path.

    Raises OptionError for a path that is not relative or contains other characters than file names need.
    """

    blobs: Mapping[str, Digest]

    def __post_init__(self) -> None:
        for path in self.blobs:
            if not _FILE_PATH.fullmatch(path) or ".." in path.split("/"):
                raise OptionError(
                    f"file path must be relative, of letters, digits, '.', '_' and '-': {path!r:.100}"
                )

    @property
    def first_part(self) -> str | None:
        """The path of the first part of a split GGUF file, or None for a checkpoint."""
        return min((path for path in self.blobs if path.endswith(".gguf")), default=None)


ModelSource: TypeAlias = ModelName | Path | Digest | CheckpointFiles
"""A source: a stored model, a folder to convert or its files as blobs, or a GGUF file as path or blobs."""


class Recipe(Struct, frozen=True, kw_only=True):
    """The parts of a model to create. None and empty values are taken from the source model.

    sources   a model of the store, the folder of a checkpoint or its files as blobs, or GGUF files: paths, or
              blobs of the store
    adapters LoRA adapters added after those of the source: GGUF files, PEFT folders or their files as blobs,
    or stored models whose adapters are used quantize the quantization mixture of the weights, a name in
    `formats.requantize.MIXTURES` draft a draft model: a small model with the same vocabulary, given like a
    source draft_quantize the quantization mixture of its weights split_from the registry files that the
    weights were joined from, which `pull` compares later
    """

    sources: Sequence[ModelSource]
    template: str | None = None
    system: str | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    messages: Sequence[Mapping[str, str]] = ()
    licenses: Sequence[str] = ()
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    adapters: Sequence[ModelSource] = ()
    quantize: str | None = None
    draft: ModelSource | None = None
    draft_quantize: str | None = None
    split_from: Sequence[Digest] = ()


def gguf_sources(digests: Mapping[str, Digest]) -> list[Digest | CheckpointFiles]:
    """Group GGUF blobs, given by path, into sources. The parts of a split file form one source.

    Raises OptionError if a part is missing.
    """
    found: dict[str, dict[int, Digest]] = {}
    single: list[Digest | CheckpointFiles] = []
    for path, digest in digests.items():
        name = _PART.fullmatch(path)
        if name is None:
            single.append(digest)
        else:
            found.setdefault(f"{name['stem']}-of-{name['count']}", {})[int(name["number"])] = digest
    return [*(_parts(name, parts) for name, parts in found.items()), *single]


def _parts(name: str, digests: Mapping[int, Digest]) -> CheckpointFiles:
    """Return all parts of one file under names that contain only their order."""
    stem, _, digits = name.rpartition("-of-")
    count = int(digits)
    for number in range(1, count + 1):
        if number not in digests:
            raise OptionError(
                f"part {number} of {count} is missing: {stem}-{number:05d}-of-{digits}.gguf; give all parts"
            )
    return CheckpointFiles(
        {f"model-{number:05d}-of-{digits}.gguf": digests[number] for number in range(1, count + 1)}
    )


def recipe_of(
    modelfile: Modelfile, folder: Path, quantize: str | None = None, draft_quantize: str | None = None
) -> Recipe:
    """Convert a Modelfile to a recipe. FROM, DRAFT and ADAPTER are paths if such files exist, else names.

    Paths are relative to `folder`. Raises ModelNotFoundError, and UnsupportedError for weights that must be
    converted first.
    """
    draft = modelfile.last("draft")
    return Recipe(
        sources=[source for text in modelfile.values("from") for source in _sources(text, folder)],
        template=modelfile.last("template"),
        system=modelfile.last("system"),
        parameters=modelfile.parameters,
        messages=modelfile.messages,
        licenses=modelfile.values("license"),
        renderer=modelfile.last("renderer"),
        parser=modelfile.last("parser"),
        requires=modelfile.last("requires"),
        adapters=[_adapter(text, folder) for text in modelfile.values("adapter")],
        quantize=quantize,
        draft=None if draft is None else _source(draft, folder, "DRAFT"),
        draft_quantize=draft_quantize,
    )


def _sources(text: str, folder: Path) -> list[ModelName | Path]:
    """Return the sources named by FROM. A folder of GGUF files yields its model and projector."""
    path = folder / Path(text).expanduser()
    if path.is_dir() and not _is_checkpoint(path):
        return list(folder_model(path).files)
    return [_source(text, folder)]


def _source(text: str, folder: Path, command: str = "FROM") -> ModelName | Path:
    """Return the source named by FROM or DRAFT: a file if it exists, else a model name, perhaps as a link."""
    if "://" in text:
        return ModelName.parse(pasted_name(text))
    path = folder / Path(text).expanduser()
    if path.is_dir():
        return path if _is_checkpoint(path) else folder_model(path).path
    if path.suffix in CONVERTIBLE:
        raise UnsupportedError(
            f"{path.name} alone cannot be converted to GGUF; {command} must name a folder with config.json, "
            "safetensors and a tokenizer"
        )
    if path.is_file():
        return path
    if text.startswith(("/", ".", "~")) or path.suffix == ".gguf":
        raise ModelNotFoundError(f"{command} {text}: no such file")
    return ModelName.parse(text)


def _adapter(text: str, folder: Path) -> ModelName | Path:
    """Return the adapter named by ADAPTER: a PEFT folder, its weight file, or a source as in `_source`."""
    path = folder / Path(text).expanduser()
    for found in (path, path.parent):
        if (found / "adapter_config.json").is_file() and (found == path or path.suffix == ".safetensors"):
            return found
    return _source(text, folder, "ADAPTER")


def _is_checkpoint(folder: Path) -> bool:
    """Return whether a folder contains weights to convert and no GGUF files."""
    suffixes = {path.suffix for path in folder.iterdir()}
    return ".safetensors" in suffixes and ".gguf" not in suffixes and (folder / "config.json").is_file()
