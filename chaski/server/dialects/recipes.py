"""Conversion of a request of /api/create to a `Recipe`, which contains names and digests, but never paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from chaski.chat.options import checked_options
from chaski.convert.adapter import CONFIG_NAME
from chaski.errors import OptionError, UnsupportedError
from chaski.names import Digest, ModelName
from chaski.server.fields.reader import Fields
from chaski.store.recipe import CheckpointFiles, ModelSource, Recipe, gguf_sources

__all__ = ["read_recipe"]

_LATER = ("remote_host", "info")
_PART_NUMBER = re.compile(r"-\d{5}(?=-of-\d{5}\.gguf$)")


def read_recipe(fields: Fields) -> Recipe:
    """Read a recipe. Raises OptionError, or UnsupportedError for models that this version cannot create."""
    for name in _LATER:
        if fields.has(name) and fields.data[name]:
            raise UnsupportedError(f"{name} is not supported by this version")
    return Recipe(
        sources=_sources(fields),
        template=fields.text_or_none("template"),
        system=fields.text_or_none("system"),
        parameters=_parameters(fields),
        messages=[_message(message) for message in fields.objects("messages")],
        licenses=fields.texts("license"),
        renderer=fields.text_or_none("renderer"),
        parser=fields.text_or_none("parser"),
        requires=fields.text_or_none("requires"),
        adapters=_adapters(fields),
        quantize=fields.text("quantize", "quantization").upper() or None,
        draft=_draft(fields),
        draft_quantize=fields.text("draft_quantize").upper() or None,
    )


def _sources(fields: Fields) -> Sequence[ModelSource]:
    if fields.has("from") and fields.text("from"):
        return [_model(fields.text("from"))]
    digests = _files(fields, "files")
    if not digests:
        raise OptionError("neither 'from' or 'files' was specified")
    weights = {path: digest for path, digest in digests.items() if path.endswith(".gguf")}
    if weights:
        return gguf_sources(weights)
    if any(path.endswith(".safetensors") for path in digests):
        return [CheckpointFiles(digests)]
    if any(path.endswith((".bin", ".pth", ".pt")) for path in digests):
        raise UnsupportedError("PyTorch files can contain code and are not read; use safetensors or GGUF")
    return list(digests.values())


def _adapters(fields: Fields) -> Sequence[ModelSource]:
    """Return the adapters, which are GGUF files or PEFT folders. A PEFT folder contains its configuration."""
    digests = {
        tuple(path.rpartition("/")[::2]): digest for path, digest in _files(fields, "adapters").items()
    }
    folders = {folder for folder, name in digests if name == CONFIG_NAME}
    found: dict[str, dict[str, Digest]] = {}
    for (folder, name), digest in digests.items():
        part_of = _PART_NUMBER.sub("", name)
        place = folder if folder in folders and not name.endswith(".gguf") else f"{folder}/{part_of}"
        found.setdefault(place, {})[name] = digest
    return [
        source
        for place, files in found.items()
        for source in ([CheckpointFiles(files)] if place in folders else gguf_sources(files))
    ]


def _draft(fields: Fields) -> ModelSource | None:
    """Return the file of the draft model; None if there is none."""
    sources = gguf_sources(_files(fields, "draft_files"))
    if len(sources) > 1:
        raise OptionError("draft_files must name one GGUF file")
    return next(iter(sources), None)


def _files(fields: Fields, name: str) -> dict[str, Digest]:
    """Return digests by path."""
    files = Fields(fields.mapping(name), name)
    for path in files.data:
        if path.startswith(("/", "\\")) or ".." in path.replace("\\", "/").split("/"):
            raise OptionError("file path must be relative")
    return {path: Digest.parse(files.text(path)) for path in files.data}


def _model(label: str) -> ModelName:
    try:
        return ModelName.parse(label)
    except OptionError:
        raise OptionError("invalid model name") from None


def _parameters(fields: Fields) -> dict[str, Any]:
    given = {name: value for name, value in fields.mapping("parameters").items() if value is not None}
    checked_options(given)
    return given


def _message(fields: Fields) -> dict[str, str]:
    role = fields.text("role").lower()
    if role not in ("system", "user", "assistant"):
        raise OptionError('message role must be one of "system", "user", or "assistant"')
    return {"role": role, "content": fields.text("content")}
