"""The store of a server: commands use it if `OLLAMA_HOST` names a server."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaski.cli.terminal import echo_note
from chaski.errors import UnsupportedError
from chaski.remote import Remote, chosen_server

if TYPE_CHECKING:
    from chaski.names import Digest
    from chaski.store.progress import StoreProgress
    from chaski.store.recipe import ModelSource, Recipe

__all__ = ["chosen_server", "create_there", "note_own_store", "transfer"]


_PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors", "config.json")


def note_own_store() -> None:
    """Note that this command uses only local files, if `OLLAMA_HOST` names a server."""
    if (server := chosen_server()) is not None:
        echo_note(f"this command uses the store of this machine, not of {server.url}")


def transfer(server: Remote, path: str, body: Mapping[str, Any]) -> Iterator[StoreProgress]:
    """Yield the progress of a long operation of the server. Raises ChaskiError with its message."""
    from chaski.names import Digest
    from chaski.store.progress import StoreProgress

    for line in server.lines(path, body):
        digest = line.get("digest")
        yield StoreProgress(
            str(line.get("status", "")),
            Digest.parse(digest) if digest else None,
            line.get("total"),
            line.get("completed"),
        )


def create_there(server: Remote, name: str, recipe: Recipe) -> Iterator[StoreProgress]:
    """Create a model on a server from a recipe, uploading the files that the recipe names.

    Raises UnsupportedError for recipes that the server's API cannot express.
    """
    body: dict[str, Any] = {"model": name, **(yield from _sources(server, recipe.sources))}
    body["adapters"] = yield from _adapters(server, recipe.adapters)
    if recipe.draft is not None:
        if not isinstance(recipe.draft, Path) or recipe.draft.is_dir():
            raise UnsupportedError("for a server, DRAFT must name a GGUF file; or unset OLLAMA_HOST")
        body["draft_files"] = yield from _uploaded(server, recipe.draft)
    for key in ("template", "system", "parameters", "messages", "renderer", "parser", "requires"):
        body[key] = getattr(recipe, key)
    body |= {"license": list(recipe.licenses), "quantize": recipe.quantize}
    body["draft_quantize"] = recipe.draft_quantize
    given = {key: value for key, value in body.items() if value not in (None, (), [], {})}
    yield from transfer(server, "/api/create", given)


def _sources(
    server: Remote, sources: Sequence[ModelSource]
) -> Generator[StoreProgress, None, dict[str, Any]]:
    """Upload a recipe's sources; return the fields of a create request that name them."""
    from chaski.names import ModelName

    names = [source for source in sources if isinstance(source, ModelName)]
    if len(names) == len(sources) == 1:
        return {"from": names[0].shown}
    if names:
        raise UnsupportedError("for a server, FROM must name one model, or GGUF files; or unset OLLAMA_HOST")
    files: dict[str, str] = {}
    for source in sources:
        files |= yield from _uploaded(server, source)
    return {"files": files}


def _adapters(
    server: Remote, sources: Sequence[ModelSource]
) -> Generator[StoreProgress, None, dict[str, str]]:
    """Send adapter files, numbered if there are several; return their digests by path."""
    found: dict[str, str] = {}
    for number, source in enumerate(sources):
        if not isinstance(source, Path):
            raise UnsupportedError("for a server, ADAPTER must name a GGUF file, or a folder of PEFT")
        files = [source / name for name in _PEFT_FILES] if source.is_dir() else [source]
        for file in filter(Path.is_file, files):
            for name, digest in (yield from _uploaded(server, file)).items():
                found[f"{number}/{name}" if len(sources) > 1 else name] = digest
    return found


def _uploaded(server: Remote, source: ModelSource) -> Generator[StoreProgress, None, dict[str, str]]:
    """Send a file, or all parts of a split file, that the server lacks; return the digests by name."""
    from chaski.formats.gguf import part_paths

    if not isinstance(source, Path) or source.is_dir():
        raise UnsupportedError(
            f"{source} is a checkpoint; convert it here with `chaski convert` and name the GGUF file "
            "in FROM, or unset OLLAMA_HOST"
        )
    found: dict[str, str] = {}
    for part in filter(Path.is_file, part_paths(source)):
        found[part.name] = yield from _uploaded_file(server, part)
    return found


def _uploaded_file(server: Remote, source: Path) -> Generator[StoreProgress, None, str]:
    """Send one file; return its digest."""
    from chaski.store.blobs import hash_file
    from chaski.store.progress import StoreProgress

    digest: Digest = hash_file(source)
    size = source.stat().st_size
    yield StoreProgress(f"copying {source.name}", digest, size)
    if not server.has(f"/api/blobs/{digest}"):
        server.upload(f"/api/blobs/{digest}", source)
    yield StoreProgress(f"copying {source.name}", digest, size, size)
    return str(digest)
