"""A conversation on the terminal: what was said, the options, and answers that appear as they are made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from chaski.cli.layout import duration

if TYPE_CHECKING:
    from chaski.cli.local import WorkerModel
    from chaski.cli.remote import RemoteModel
    from chaski.runner.events import Done
    from chaski.runner.llm import LLM, EventStream

    Model: TypeAlias = LLM | WorkerModel | RemoteModel

__all__ = ["Session", "report"]


@dataclass(slots=True)
class Session:
    """What a chat is about.

    name, open  what the user calls the model, and how to get another one
    is_raw      prompts go to the model as they are, without a template
    keeps_lines what is typed is remembered for later chats
    history     the turns so far
    """

    model: Model
    options: dict[str, Any]
    system: str | None = None
    is_raw: bool = False
    is_verbose: bool = False
    keeps_history: bool = True
    keeps_lines: bool = False
    name: str = ""
    open: Callable[[str], Model] | None = None
    history: list[dict[str, str]] = field(default_factory=list)
    _is_first: bool = True

    def load(self, name: str) -> None:
        """Go on with another model, and a new conversation. Where that fails, the old one stays."""
        assert self.open is not None, "who chats can open models"
        model = self.open(name)
        self.model.close()
        self.model, self.name, self.system = model, name, None
        self.history.clear()
        self._is_first = True

    def save(self, name: str) -> None:
        """Make a model of this one with the options, the system message and the turns of the session."""
        from chaski.cli.remote import RemoteModel

        parameters = {key: value for key, value in self.options.items() if key != "format"}
        settings = {"system": self.system, "parameters": parameters, "messages": self.history}
        given = {key: value for key, value in settings.items() if value}
        if isinstance(self.model, RemoteModel):
            self.model.save(name, given)
        else:
            _save_here(self.name, name, given)

    def answer(self, prompt: str) -> bool:
        """Print the answer to `prompt`; whether it came to its end. Ctrl-C stops it there.

        The turn, or what there is of it, becomes part of the history.
        """
        from chaski.runner.events import Text

        events = self._events(prompt)
        said: list[str] = []
        done = None
        try:
            with closing(events):
                for event in events:
                    if isinstance(event, Text):
                        said.append(event.text)
                        click.echo(event.text, nl=False)
                    else:
                        done = event
        except KeyboardInterrupt:
            pass
        click.echo()
        if self.keeps_history:
            self.history += [_message("user", prompt), _message("assistant", "".join(said))]
        if done is not None and done.dropped_tokens:
            click.echo(f"The context is full: {done.dropped_tokens} tokens were left out.", err=True)
        if done is not None and self.is_verbose:
            click.echo(report(done if self._is_first else replace(done, load_seconds=0.0)), err=True)
        self._is_first = False
        return done is not None

    def _events(self, prompt: str) -> EventStream:
        if self.is_raw:
            return self.model.stream(prompt, **self.options)
        system = [_message("system", self.system)] if self.system else []
        # Old turns may be left out; a first message that does not fit is refused.
        options = {"truncate": bool(self.history), **self.options}
        return self.model.stream_chat([*system, *self.history, _message("user", prompt)], **options)


def _save_here(source: str, name: str, settings: dict[str, Any]) -> None:
    from chaski.names import ModelName
    from chaski.store.create import create
    from chaski.store.model import find_model
    from chaski.store.recipe import Recipe
    from chaski.store.store import Store

    found = find_model(source)
    recipe = Recipe(sources=[found.name or found.path], **settings)
    for _ in create(Store.default(), ModelName.parse(name), recipe):
        pass


def report(done: Done) -> str:
    """Counts, times and rates of an answer, as the reference prints them; what is 0 is left out."""
    computed = done.prompt_tokens - done.cached_tokens
    total = done.load_seconds + done.prefill_seconds + done.decode_seconds
    # The first token comes out of the prompt's own batch, so decoding made one less.
    decoded = max(done.generated_tokens - 1, 0)
    rows = [
        ("total duration", duration(total), total),
        ("load duration", duration(done.load_seconds), done.load_seconds),
        ("prompt eval count", f"{done.prompt_tokens} token(s)", done.prompt_tokens),
        ("prompt cached count", f"{done.cached_tokens} token(s)", done.cached_tokens),
        ("prompt dropped count", f"{done.dropped_tokens} token(s)", done.dropped_tokens),
        ("prompt eval duration", duration(done.prefill_seconds), done.prefill_seconds),
        ("prompt eval rate", _rate(computed, done.prefill_seconds), computed),
        ("eval count", f"{done.generated_tokens} token(s)", done.generated_tokens),
        ("eval duration", duration(done.decode_seconds), done.decode_seconds),
        ("eval rate", _rate(decoded, done.decode_seconds), decoded),
    ]
    return "\n".join(f"{label + ':':<22}{text}" for label, text, value in rows if value)


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / max(seconds, 1e-9):.2f} tokens/s"


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
