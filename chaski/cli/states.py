"""Saved conversation states: files next to the stored models that start with these conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from chaski.cli.terminal import echo_note
from chaski.errors import ChaskiError

if TYPE_CHECKING:
    from chaski.cli.remote_model import RemoteModel
    from chaski.runner.llm import LLM
    from chaski.store.model import StoredModel

__all__ = ["bring_state", "keep_state"]


def keep_state(
    model: LLM | RemoteModel, name: str, messages: Sequence[Mapping[str, Any]], think: bool | str | None
) -> None:
    """Save the state of the initial conversation of the stored model `name`, and report that.

    Nothing is written if the prefix cache may not write to disk. If the state cannot be saved, a note is
    printed, and the conversation will be computed again.
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
        echo_note(f"the state was not saved: {error}")
    else:
        if kept is not None:
            click.echo(f"Kept the state of {kept[0]} tokens ({size(kept[1])})", err=True)


def _kept_here(
    model: LLM, name: str, messages: Sequence[Mapping[str, Any]], think: bool | str | None
) -> tuple[int, int] | None:
    """Save a state of a model in this process; return its tokens and bytes, or None if not allowed."""
    from chaski.env import Environment
    from chaski.errors import StateError
    from chaski.names import ModelName
    from chaski.store.model import find_model
    from chaski.store.store import Store

    if Environment.read().prefix_cache != "on":
        return None
    if find_model(name).path.resolve() != model.path.resolve():
        raise StateError("the new model has a separate file")
    path = Store.default().make_state_path(ModelName.parse(name))
    saved = model.save_state(path, messages, think=think)
    return saved.tokens, saved.num_bytes


def bring_state(model: LLM, found: StoredModel) -> None:
    """Load the saved state of a stored model's initial conversation, if it exists."""
    from chaski.store.store import Store

    if found.name is None or model.engine.tiers is None:
        return
    path = Store.default().state_path(found.name)
    if path.is_file():
        try:
            model.load_state(path)
        except ChaskiError as error:
            echo_note(f"the conversation is computed again: {error}")
