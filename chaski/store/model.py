"""`StoredModel`: a model with the typed values of its layers, and lookup by name or path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from chaski.errors import ModelNotFoundError, OptionError, StoreError, UnsupportedError
from chaski.formats.bounded_json import TooManyValuesError, load_json
from chaski.names import DEFAULT_TAG, ModelName
from chaski.store.folder import folder_model
from chaski.store.manifest import MAX_JSON_VALUES
from chaski.store.parameters import Parameter
from chaski.store.store import Entry, Store
from chaski.suggestions import suggestion

__all__ = ["StoredConfig", "StoredModel", "find_model", "model_question", "read_model", "read_stored_config"]

_SHOWN_NAMES = 8

T = TypeVar("T")


class StoredConfig(Struct, frozen=True):
    """The config blob of a model's manifest. Missing fields are empty."""

    model_format: str = ""
    model_family: str = ""
    model_families: tuple[str, ...] = ()
    model_type: str = ""
    file_type: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    remote_host: str = ""
    remote_model: str = ""

    @classmethod
    def parse(cls, data: bytes) -> StoredConfig:
        """Parse the blob, ignoring unknown keys. Raises StoreError."""
        found = _read_json(data, dict, "config")
        families = found.get("model_families") or []
        texts = {key: found.get(key) or "" for key in cls.__struct_fields__ if key != "model_families"}
        if not isinstance(families, list) or not all(
            isinstance(x, str) for x in [*families, *texts.values()]
        ):
            raise StoreError("the config of the model contains values that are not texts")
        return cls(model_families=tuple(families), **texts)


class StoredModel(Struct, frozen=True):
    """A model ready to be opened: its file and the settings of its layers. A plain file has no settings.

    name        its name in the store; None for a plain file
    path        the GGUF file of its weights
    projectors  GGUF files of its image or audio encoders
    adapters GGUF files of LoRA adapters draft the GGUF file of a draft model, which proposes tokens template
    the chat template, in Go's template language system the default system message parameters options under
    Ollama's names messages the initial turns of every conversation: role and content licenses the texts of
    its licenses
    """

    name: ModelName | None
    path: Path
    projectors: tuple[Path, ...] = ()
    adapters: tuple[Path, ...] = ()
    draft: Path | None = None
    config: StoredConfig = field(default_factory=StoredConfig)
    template: str | None = None
    system: str | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()
    licenses: tuple[str, ...] = ()


def find_model(model: str | os.PathLike[str], store: Store | None = None) -> StoredModel:
    """Find a model by name in the store or among the bundled models, else by file path.

    A `Path` always means a file, or a folder with the files of one model. Use `./name` for a file whose name
    is also a model's. Raises ModelNotFoundError, listing the available models, UnsupportedError or
    StoreError.
    """
    store = store or Store.default()
    if isinstance(model, str) and (entry := _stored(model, store)) is not None:
        return read_model(store, entry)
    path = Path(model)
    if path.is_file():
        return StoredModel(None, path)
    if path.is_dir():
        found = folder_model(path)
        return StoredModel(None, found.path, projectors=found.files[1:])
    names = [name.short for name in store.all_names()]
    shown = ", ".join(names[:_SHOWN_NAMES] + ["..."] * (len(names) > _SHOWN_NAMES)) or "none"
    question = model_question(str(model), names) or f"models here: {shown}"
    raise ModelNotFoundError(f"no file {str(model)!r} and no model of that name; {question}")


def model_question(typed: str, names: Iterable[str]) -> str:
    """Return a question that proposes models for the name of none, or "" if no name is near.

    names  short names of models; the usual tag is left out
    """
    return suggestion(typed, [name.removesuffix(f":{DEFAULT_TAG}") for name in names], {})


def read_stored_config(store: Store, entry: Entry) -> StoredConfig:
    """Read the config blob of a model. Raises StoreError."""
    if entry.bundled is not None:
        return StoredConfig.parse(entry.bundled.config)
    return StoredConfig.parse(store.blobs.read(entry.manifest.config.digest))


def read_model(store: Store, entry: Entry) -> StoredModel:
    """Read the layers of a stored model. Raises StoreError for damaged ones, UnsupportedError."""
    manifest, blobs = entry.manifest, store.blobs
    config = read_stored_config(store, entry)
    if entry.bundled is not None:
        parameters = _parameters(entry.bundled.parameters.decode())
        return StoredModel(entry.name, entry.bundled.path, config=config, parameters=parameters)

    def files(kind: str) -> tuple[Path, ...]:
        layers = manifest.of_kind(kind)
        if gone := [layer.digest.short for layer in layers if blobs.size(layer.digest) is None]:
            raise StoreError(f"blob {gone[0]} of {entry.name.shown} is missing; pull or create it again")
        return tuple(blobs.path(layer.digest) for layer in layers)

    def texts(kind: str) -> tuple[str, ...]:
        return tuple(blobs.read(layer.digest).decode(errors="replace") for layer in manifest.of_kind(kind))

    return StoredModel(
        name=entry.name,
        path=_weights(entry, config, files("model")),
        projectors=files("projector"),
        adapters=files("adapter"),
        draft=_last(files("draft")),
        config=config,
        template=_last(texts("template") or texts("prompt")),
        system=_last(texts("system")),
        parameters=_parameters(_last(texts("params"))),
        messages=_messages(_last(texts("messages"))),
        licenses=texts("license"),
    )


def _stored(model: str, store: Store) -> Entry | None:
    try:
        name = ModelName.parse(model)
    except OptionError:
        return None
    return store.entry(name) if store.locate(name) else None


def _weights(entry: Entry, config: StoredConfig, models: tuple[Path, ...]) -> Path:
    if config.remote_host:
        raise UnsupportedError(
            f"{entry.name.shown} runs on {config.remote_host}; chaski runs models here only"
        )
    if len(models) != 1:
        what = "is not a GGUF model" if not models else f"has {len(models)} weight files"
        raise UnsupportedError(f"{entry.name.shown} {what}; this version runs models of one GGUF file")
    return models[0]


def _parameters(text: str | None) -> Mapping[str, Parameter]:
    found = _read_json(text or "{}", dict, "params")
    return {key: value for key, value in found.items() if value is not None}


def _messages(text: str | None) -> tuple[Mapping[str, str], ...]:
    found = _read_json(text or "[]", list, "messages")
    try:
        return tuple({"role": turn["role"], "content": turn.get("content") or ""} for turn in found)
    except (TypeError, KeyError, AttributeError):
        raise StoreError("the messages of the model are not a list of roles and contents") from None


def _read_json(data: str | bytes, kind: type[T], what: str) -> T:
    try:
        found = load_json(data.encode() if isinstance(data, str) else data, MAX_JSON_VALUES)
    except (ValueError, RecursionError, TooManyValuesError) as error:
        raise StoreError(f"the {what} of the model is no JSON: {error}") from None
    if not isinstance(found, kind):
        raise StoreError(f"the {what} of the model is a {type(found).__name__}")
    return found


def _last(items: tuple[T, ...]) -> T | None:
    return items[-1] if items else None
