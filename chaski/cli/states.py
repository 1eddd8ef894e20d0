"""States of saved conversations: files beside the models of the store that begin with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from chaski.errors import ChaskiError

if TYPE_CHECKING:
    from chaski.cli.remote_model import RemoteModel
    from chaski.runner.llm import LLM
    from chaski.store.model import StoredModel

__all__ = ["bring_state", "keep_state"]


def keep_state(
    model: LLM | RemoteModel, name: str, messages: Sequence[Mapping[str, Any]], think: bool | str | None
) -> None:
    """Write the state of the conversation that the stored model `name` begins with, and say so.

    Nothing is written where the prefix cache may not write to disk. A state that cannot be kept costs a note:
    the conversation is computed again then.
    """
    from chaski.cli.layout import size
    from chaski.cli.remote_model import RemoteModel

    kept: tuple[int, int] | None
    try:
        if isinstance(model, RemoteModel):
            kept = model.keep_state(name, think)
        else:
            kept = _kept_here(model, name, messages, think)
    except ChaskiError as error:
        click.echo(f"Note: the state is not kept: {error}", err=True)
    else:
        if kept is not None:
            click.echo(f"Kept the state of {kept[0]} tokens ({size(kept[1])})", err=True)


def _kept_here(
    model: LLM, name: str, messages: Sequence[Mapping[str, Any]], think: bool | str | None
) -> tuple[int, int] | None:
    """Keep a state of a model in this process -> its tokens and bytes; None where none may be written."""
    from chaski.env import Environment
    from chaski.errors import StateError
    from chaski.names import ModelName
    from chaski.store.model import find_model
    from chaski.store.store import Store

    if Environment.read().prefix_cache != "on":
        return None
    if find_model(name).path.resolve() != model.path.resolve():
        raise StateError("the new model has a file of its own")
    path = Store.default().make_state_path(ModelName.parse(name))
    saved = model.save_state(path, messages, think=think)
    return saved.tokens, saved.num_bytes


def bring_state(model: LLM, found: StoredModel) -> None:
    """Load the state of the conversation that a stored model begins with, if one was kept."""
    from chaski.store.store import Store

    if found.name is None or model.engine.tiers is None:
        return
    path = Store.default().state_path(found.name)
    if path.is_file():
        try:
            model.load_state(path)
        except ChaskiError as error:
            click.echo(f"Note: the conversation is computed again: {error}", err=True)
