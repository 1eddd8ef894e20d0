"""`chaski create`: creates a model from a Modelfile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaski.cli.transfer import access_to, show_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaski.formats.gguf import GGUFFile
    from chaski.store.modelfile import Modelfile
    from chaski.store.progress import StoreProgress

__all__ = ["command"]

_DEFAULT_FILE = "Modelfile"


@click.command("create", short_help="Create a model from a Modelfile.")
@click.argument("model")
@click.option(
    "-f", "--file", metavar="PATH", help="The Modelfile.  [default: Modelfile, else the GGUF file here]"
)
@click.option("-q", "--quantize", metavar="TYPE", help="Type of the quantized weights, such as Q4_K_M.")
@click.option("--draft-quantize", metavar="TYPE", help="Quantization type of the draft model.")
@click.option("--link", is_flag=True, help="Link the file into the store instead of copying it.")
@click.help_option("-h", "--help")
def command(
    model: str, file: str | None, quantize: str | None, draft_quantize: str | None, link: bool
) -> None:
    """Create MODEL from the weights and settings in a Modelfile."""
    from chaski.cli.remote_store import chosen_server, create_there
    from chaski.errors import UnsupportedError
    from chaski.names import ModelName
    from chaski.store.create import create
    from chaski.store.pull import pull
    from chaski.store.recipe import recipe_of
    from chaski.store.store import Store

    name, store = ModelName.parse(model), Store.default()
    modelfile, folder = _modelfile(file)
    types = (each.upper() if each else None for each in (quantize, draft_quantize))
    recipe = recipe_of(modelfile, folder, *types)
    if (server := chosen_server()) is not None:
        if link:
            raise UnsupportedError(
                "--link works only with the store of this machine; a server gets a copy of the file"
            )
        show_progress(create_there(server, model, recipe))
        return

    def fetch(source: ModelName) -> Iterator[StoreProgress]:
        return pull(store, source, access_to(source))

    show_progress(create(store, name, recipe, fetch, link, _open_model))


def _open_model(path: Path) -> GGUFFile:
    """Open the base model of an adapter."""
    from chaski.model.file_dialects import open_model

    return open_model(path)


def _modelfile(given: str | None) -> tuple[Modelfile, Path]:
    """Return the recipe, and the folder to which its paths are relative.

    Without a Modelfile, the recipe uses the weights in the current folder."""
    from chaski.errors import ModelfileError
    from chaski.store.modelfile import Modelfile

    path = Path(given or _DEFAULT_FILE)
    if path.is_file():
        return Modelfile.parse(path.read_bytes()), path.parent
    if given is not None:
        raise ModelfileError("specified Modelfile wasn't found")
    return Modelfile.parse("FROM ."), Path()
