"""`create`: builds a stored model from a GGUF file, a checkpoint or another model, plus settings."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from chaski.errors import ModelNotFoundError, OptionError, StoreError
from chaski.formats.bounded_json import TooManyValuesError, load_json
from chaski.names import Digest, ModelName
from chaski.store.adapter_files import OpenModel, add_adapter, open_plainly
from chaski.store.bundled import check_free
from chaski.store.manifest import CONFIG, MAX_JSON_VALUES, Manifest, ManifestLayer, go_json, media_type
from chaski.store.model import read_model
from chaski.store.parameters import Parameter
from chaski.store.progress import StoreProgress
from chaski.store.recipe import CheckpointFiles, ModelSource, Recipe
from chaski.store.rewrite import bring, convert_checkpoint, folder_of, rewrite
from chaski.store.store import Store
from chaski.store.weights import WeightSummary, inspect

__all__ = ["create", "missing_sources", "read_object"]


def create(
    store: Store,
    name: ModelName,
    recipe: Recipe,
    fetch: Callable[[ModelName], Iterator[StoreProgress]] | None = None,
    link: bool = False,
    open_model: OpenModel = open_plainly,
) -> Generator[StoreProgress, None, None]:
    """Create a model. It replaces a model of the same name once it is complete.

    fetch: fetches a source that is missing in the store; without it, ModelNotFoundError is raised.
    open_model: opens the base model of an adapter.
    link: whether to hard-link a file that cannot share blocks with its blob, instead of copying it. Raises
    OptionError, also for the name of a bundled model, TemplateError, UnsupportedError, GGUFError,
    StoreError, and the errors of `fetch`.
    """
    check_free(name)
    for missing in missing_sources(store, recipe):
        if fetch is None:
            raise ModelNotFoundError(f"model '{missing.shown}' not found")
        yield from fetch(missing)
    with store.adding():
        replaced = store.entry(name).manifest.blobs if store.locate(name) else ()
        draft = _Draft(store, link, open_model)
        for source in recipe.sources:
            yield from _add_source(draft, source, recipe.quantize, name)
        for source in recipe.adapters:
            yield from _add_adapter(draft, source)
        if recipe.draft is not None:
            yield from _add_draft_model(draft, recipe.draft, recipe.draft_quantize)
        _apply(recipe, draft)
        manifest = draft.finish()
        for layer in manifest.blobs:
            verb = "using existing" if layer.source else "creating new"
            yield StoreProgress(f"{verb} layer {layer.digest}")
        yield StoreProgress("writing manifest")
        store.put(name, manifest.encode())
    store.remove_unused(layer.digest for layer in replaced)
    yield StoreProgress("success")


def missing_sources(store: Store, recipe: Recipe) -> list[ModelName]:
    """Return the sources of a recipe that are not in the store. Raises TemplateError for a bad template."""
    _check_template(recipe.template)
    named = (*recipe.sources, *recipe.adapters, recipe.draft)
    return [each for each in named if isinstance(each, ModelName) and store.locate(each) is None]


def _check_template(source: str | None) -> None:
    """Raise TemplateError, with the line, for a template that cannot be rendered."""
    if source:
        from chaski.text.template.go import GoTemplate

        GoTemplate(source)


class _Draft:
    """A manifest under construction."""

    def __init__(self, store: Store, link: bool, open_model: OpenModel) -> None:
        self.store = store
        self.link = link
        self.open_model = open_model
        self.config: dict[str, Any] = {"model_format": "gguf"}
        self.layers: list[ManifestLayer] = []

    def add_model(self, name: ModelName) -> None:
        """Start with all layers of another model."""
        entry = self.store.entry(name)
        self.store.bring(entry)
        self.config |= read_object(self.store, entry.manifest.config)
        self.layers += [replace(layer, source=str(entry.name)) for layer in entry.manifest.layers]

    def add_weights(self, digest: Digest, weights: WeightSummary) -> None:
        """Add a GGUF blob as a layer of its kind."""
        self.add(weights.kind, digest)
        if weights.kind == "model":
            sizes = {"model_type": weights.size, "file_type": weights.file_type}
            self.config |= {"model_family": weights.family, **sizes}
        families = self.config.get("model_families") or []
        self.config["model_families"] = list(dict.fromkeys([*families, weights.family]))

    def drop(self, kind: str) -> list[ManifestLayer]:
        """Remove and return the layers of a kind."""
        dropped = [layer for layer in self.layers if layer.kind == kind]
        self.layers = [layer for layer in self.layers if layer.kind != kind]
        return dropped

    def put(self, kind: str, *texts: bytes) -> None:
        """Replace the texts of a kind. Empty texts are not stored."""
        self.drop(kind)
        for text in filter(None, texts):
            self.add(kind, self.store.blobs.add(text))

    def put_parameters(self, parameters: Mapping[str, Parameter]) -> None:
        """Add parameters. New values override existing ones."""
        before: dict[str, Any] = {}
        for layer in self.drop("params"):
            before |= read_object(self.store, layer)
        self.put("params", go_json(dict(sorted({**before, **parameters}.items()))))

    def finish(self) -> Manifest:
        """Write the config blob, and return the manifest."""
        if sum(layer.kind == "model" for layer in self.layers) != 1:
            raise OptionError("a model has one file of weights; FROM must name one GGUF file or model")
        rootfs = {"type": "layers", "diff_ids": [str(layer.digest) for layer in self.layers]}
        platform = {"architecture": "amd64", "os": "linux", "rootfs": rootfs}
        data = go_json({key: value for key, value in self.config.items() if value} | platform)
        digest = self.store.blobs.add(data)
        return Manifest(ManifestLayer(CONFIG, digest, len(data)), tuple(self.layers))

    def add(self, kind: str, digest: Digest) -> None:
        """Add a layer."""
        self.layers.append(ManifestLayer(media_type(kind), digest, self.store.blobs.size(digest) or 0))


def _add_source(
    draft: _Draft, source: ModelSource, quantize: str | None, name: ModelName
) -> Iterator[StoreProgress]:
    """Add the source named by FROM, with its weights quantized if requested."""
    if isinstance(source, CheckpointFiles):
        with folder_of(draft.store.blobs, source, name.model) as folder:
            if source.first_part is None:
                yield from _add_checkpoint(draft, folder, quantize)
            else:
                yield from _add_source(draft, folder / source.first_part, quantize, name)
        return
    if isinstance(source, ModelName):
        draft.add_model(source)
        if quantize is None:
            return
        (layer,) = draft.drop("model")
        path = draft.store.blobs.path(layer.digest)
    else:
        path = draft.store.blobs.path(source) if isinstance(source, Digest) else source
    if path.is_file() and inspect(path).kind == "adapter":
        yield from _add_adapter(draft, path)
        return
    digest = yield from _weights(draft, path, quantize)
    draft.add_weights(digest, inspect(draft.store.blobs.path(digest)))


def _add_adapter(draft: _Draft, source: ModelSource) -> Iterator[StoreProgress]:
    """Append adapters to those of the source, without duplicates."""
    models = [layer for layer in draft.layers if layer.kind == "model"]
    if len(models) != 1:
        raise OptionError("an adapter changes one model, which FROM must name before it")
    base = draft.store.blobs.path(models[0].digest)
    there = {layer.digest for layer in draft.layers if layer.kind == "adapter"}
    for digest in (yield from add_adapter(draft.store, source, base, draft.link, draft.open_model)):
        if digest not in there:
            draft.add("adapter", digest)


def _add_draft_model(draft: _Draft, source: ModelSource, quantize: str | None) -> Iterator[StoreProgress]:
    """Add the weights of DRAFT from a file or another model, replacing the source's draft."""
    if isinstance(source, CheckpointFiles):
        if source.first_part is None:
            raise OptionError("a draft is made of one GGUF file, or of the name or folder of a model")
        with folder_of(draft.store.blobs, source, "draft") as folder:
            yield from _add_draft_model(draft, folder / source.first_part, quantize)
        return
    if isinstance(source, ModelName):
        path = read_model(draft.store, draft.store.entry(source)).path
    else:
        path = draft.store.blobs.path(source) if isinstance(source, Digest) else source
    digest = yield from _weights(draft, path, quantize)
    if inspect(draft.store.blobs.path(digest)).kind != "model":
        raise OptionError(f"{path.name} is not a text model, so it cannot be a draft model")
    draft.drop("draft")
    draft.add("draft", digest)


def _weights(draft: _Draft, path: Path, quantize: str | None) -> Generator[StoreProgress, None, Digest]:
    """Store the weights of a file or checkpoint folder as a blob, quantized if requested."""
    blobs = draft.store.blobs
    if path.is_dir():
        return (yield from convert_checkpoint(blobs, path, quantize))
    yield StoreProgress("parsing GGUF")
    weights = inspect(path)
    if weights.is_split or (quantize and weights.kind == "model"):
        return (yield from rewrite(blobs, path, weights, quantize))
    if path.parent == blobs.folder:
        return Digest.parse(path.name)
    return (yield from bring(blobs, path, draft.link))


def _add_checkpoint(draft: _Draft, folder: Path, quantize: str | None) -> Iterator[StoreProgress]:
    digest = yield from convert_checkpoint(draft.store.blobs, folder, quantize)
    draft.add_weights(digest, inspect(draft.store.blobs.path(digest)))


def _apply(recipe: Recipe, draft: _Draft) -> None:
    """Replace the source's settings with those of a recipe."""
    for kind, text in (("template", recipe.template), ("system", recipe.system)):
        if text is not None:
            draft.put(kind, text.encode())
    if recipe.licenses:
        draft.put("license", *(text.encode() for text in recipe.licenses))
    if recipe.parameters:
        draft.put_parameters(recipe.parameters)
    if recipe.messages:
        draft.put("messages", go_json([dict(message) for message in recipe.messages]))
    for key in ("renderer", "parser", "requires"):
        if (value := getattr(recipe, key)) is not None:
            draft.config[key] = value
    # A later pull compares these digests, because the parts themselves are deleted.
    draft.config["split_from"] = [str(digest) for digest in recipe.split_from]


def read_object(store: Store, layer: ManifestLayer) -> dict[str, Any]:
    """Return the JSON object in a small layer. Raises StoreError."""
    try:
        found = load_json(store.blobs.read(layer.digest), MAX_JSON_VALUES)
    except (ValueError, RecursionError, TooManyValuesError) as error:
        raise StoreError(f"blob {layer.digest.short} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise StoreError(f"blob {layer.digest.short} is no JSON object")
    return found
