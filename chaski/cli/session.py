"""A conversation on the terminal: its turns, its options, and its answers, printed as generated."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from msgspec import Struct, field
from msgspec.structs import replace

from chaski.cli.answer_output import AnswerOutput, report
from chaski.cli.chat_figures import Answered
from chaski.cli.image_paths import find_images
from chaski.cli.quiet_terminal import quiet_terminal
from chaski.cli.terminal import echo_note, echo_text, visible
from chaski.cli.tools import Tool, as_message, read_result
from chaski.cli.typed_words import unescaped
from chaski.errors import ChaskiError, ContextLengthError, OptionError, OutOfMemoryError
from chaski.options import OPTIONS, is_integer, none_below_zero
from chaski.regular_files import read_regular

if TYPE_CHECKING:
    from chaski.chat.events import Done, Event, ToolCall
    from chaski.cli.local import WorkerModel
    from chaski.cli.remote_model import RemoteModel
    from chaski.runner.llm import LLM

    Model: TypeAlias = LLM | WorkerModel | RemoteModel

__all__ = ["Session", "read_format", "read_think"]

# Options of loading, with the minimum of each.
_SHOWN_SCHEMA = 80
_LOADING = {"num_ctx": 1, "num_thread": 1, "num_gpu": -1, "main_gpu": 0, "n_cpu_moe": -1}
_PLACING = ("cpu_moe", "override_tensor")


class Session(Struct):
    """A conversation with a model, and its settings.

    name        name of the model, as the user gave it
    open        opens another model: open(name, num_ctx=, num_thread=, ...)
    loading     loading options of a local model; a server's model gets them with each message
    can_grow    the context of a local model was not set: a prompt that needs a longer one loads it again
    is_raw      prompts are sent to the model unchanged, without a template
    keeps_lines  typed lines are saved for later chats
    think       whether the model thinks, or how much; None for the model's default
    hides_thinking  the model's thoughts are not printed
    wraps_words  lines on a terminal break between words
    renders_markdown  answers on a terminal are formatted as Markdown
    history     the turns so far
    tools       tools that the model may call
    read        prints a prompt and reads the user's reply; None without a user
    answers     statistics of this model's answers; `turns`: those of this conversation
    """

    model: Model
    options: dict[str, Any]
    system: str | None = None
    is_raw: bool = False
    is_verbose: bool = False
    keeps_history: bool = True
    keeps_lines: bool = False
    think: bool | str | None = None
    hides_thinking: bool = False
    wraps_words: bool = True
    renders_markdown: bool = True
    name: str = ""
    open: Callable[..., Model] | None = None
    loading: dict[str, Any] = field(default_factory=dict)
    can_grow: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    read: Callable[[str], str] | None = None
    answers: list[Answered] = field(default_factory=list)
    turns: list[Answered] = field(default_factory=list)
    _is_first: bool = True
    _is_longest: bool = False

    def load(self, name: str) -> None:
        """Switch to another model and begin a new conversation. If that fails, the old model is kept."""
        assert self.open is not None, "a chat can open models"
        model = self.open(name)
        self.model.close()
        self.model, self.name, self.system, self.think = model, name, None, None
        self.clear()
        self.answers.clear()
        self.tools.clear()
        self.loading.clear()
        self._is_first, self._is_longest = True, False
        self.print_opening()

    def close(self) -> None:
        """Close the model."""
        self.model.close()

    def clear(self) -> None:
        """Forget the conversation."""
        self.history.clear()
        self.turns.clear()

    def set_parameter(self, name: str, value: Any) -> None:
        """Set an option for later messages. Raises OptionError or SamplingError without changing anything.

        A local model is reloaded for another context, thread count or GPU. The conversation continues.
        """
        from chaski.chat.options import parse_options
        from chaski.cli.remote_model import RemoteModel

        if name in _PLACING:
            if not OPTIONS[name].allows(value):
                raise OptionError(f"option {name} is {value!r:.100}; it must be {OPTIONS[name].wanted}")
        elif name not in _LOADING:
            value = none_below_zero(name, value)
            parse_options({name: value})
        elif not is_integer(value) or value < _LOADING[name]:
            least = _LOADING[name]
            raise OptionError(f"option {name} is {value!r}; it must be a whole number of at least {least}")
        if name in (*_LOADING, *_PLACING) and not isinstance(self.model, RemoteModel):
            self._reload({**self.loading, name: value})
            return
        self.options[name] = value

    def _reload(self, loading: dict[str, Any]) -> None:
        """Reload the model with other settings. If that fails, reload it with the old ones and raise."""
        self._reopen(**loading)
        self.loading = loading

    def _reopen(self, **loading: Any) -> None:
        from chaski.cli.local import moved_prefixes

        assert self.open is not None, "a chat can open models"
        with moved_prefixes(self.model) as give:
            self.model.close()  # first, because memory may not suffice for two
            try:
                self.model = self.open(self.name, **loading)
            except ChaskiError:
                self.model = self.open(self.name, **self.loading)
                raise
            finally:
                give(self.model)
        self._is_first = True

    @property
    def _may_grow(self) -> bool:
        """Return whether a longer context may help a prompt that is too long, as on a server."""
        from chaski.cli.remote_model import RemoteModel
        from chaski.env import Environment

        model = self.model
        if not self.can_grow or self._is_longest or isinstance(model, RemoteModel):
            return False
        usual = model.defaults.loading.get("num_ctx") or Environment.read().context
        return not usual and "num_ctx" not in self.loading and model.context < model.max_context

    def _grow(self, length: int) -> None:
        """Load the model again with a context of that many tokens, as far as memory and model allow."""
        with suppress(OutOfMemoryError):
            self._reopen(**self.loading, needed_context=length)
        self._is_longest = self.model.context < length

    def print_opening(self) -> None:
        """Print the initial turns of the model's conversations."""
        for turn in self.model.defaults.opening:
            if turn["role"] == "user":
                echo_text(f">>> {turn['content']}")
            elif turn["role"] == "assistant":
                output = self._output()
                output.text(turn["content"] + "\n")
                output.end()

    def save(self, name: str) -> None:
        """Store a new model from this one with the session's options, system message and turns.

        Only the text of each turn is stored, and the state of all turns. The model's initial turns precede
        those of the session.
        """
        from chaski.cli.local import WorkerModel
        from chaski.cli.remote_model import RemoteModel
        from chaski.cli.states import keep_state

        if "adapter" in self.options:
            raise OptionError("/save cannot store adapters; `chaski create` can, by a Modelfile with ADAPTER")
        parameters = {key: value for key, value in self.options.items() if key != "format"} | self.loading
        opening = self.model.defaults.opening if self.history else ()
        spoken = [turn for turn in (*opening, *self.history) if turn["role"] != "tool"]
        turns = [_message(turn["role"], turn["content"]) for turn in spoken]
        settings = {"system": self.system, "parameters": parameters, "messages": turns}
        given = {key: value for key, value in settings.items() if value}
        if isinstance(self.model, RemoteModel):
            self.model.save(name, given)
        else:
            _save_here(self.name, name, given)
        keeps_state = self.history and not self.is_raw and not self.options.get("no_store")
        if keeps_state and not isinstance(self.model, WorkerModel):
            keep_state(self.model, name, [*self._system, *self.history], self.think)

    def answer(self, prompt: str) -> bool:
        """Print the answer to `prompt`; return whether it is complete. Ctrl-C stops it.

        A vision model gets the images whose paths are in the prompt. The user enters the results of tool
        calls, and the model continues. The turn, even if interrupted, becomes part of the history. Raises
        ImageError for an invalid image file.
        """
        turn = [self._with_images(prompt)]
        while True:
            output, done = self._print_answer(turn)
            turn.append(_message("assistant", "".join(output.said)))
            if done is None or not output.calls or not (results := self._results(output.calls)):
                break
            turn[-1]["tool_calls"] = [as_message(call) for call in output.calls]
            turn += results
        if self.keeps_history:
            self.history += turn
        return done is not None

    def _print_answer(self, turn: list[dict[str, Any]]) -> tuple[AnswerOutput, Done | None]:
        """Print the answer to a turn; return the output, and its end unless interrupted."""
        output = self._output()
        done, first, begun = None, 0.0, perf_counter()
        try:
            with quiet_terminal(), closing(self._events(turn)) as events:
                for event in events:
                    first = first or perf_counter() - begun
                    done = output.show(event)
        except KeyboardInterrupt:
            pass
        except ChaskiError:
            if output.said:
                output.end()
            raise
        output.end()
        if done is not None:
            self._note(done, first)
        self._is_first = False
        return output, done

    def _note(self, done: Done, first_seconds: float) -> None:
        """Record the statistics of an answer, and print those the user should see."""
        self.answers.append(Answered(done, first_seconds))
        if self.keeps_history:
            self.turns.append(self.answers[-1])
        if done.dropped_tokens:
            click.echo(f"The context is full: {done.dropped_tokens} tokens were left out.", err=True)
        if self.is_verbose:
            click.echo(report(done if self._is_first else replace(done, load_seconds=0.0)), err=True)

    def _results(self, calls: list[ToolCall]) -> list[dict[str, Any]]:
        """Ask the user for the results of calls. Return none without a user or if the user declines."""
        if self.read is None:
            return []
        try:
            return [read_result(call, self.read) for call in calls]
        except (EOFError, KeyboardInterrupt):
            return []

    def shows_image(self, prompt: str) -> bool:
        """Return whether `prompt` names an image file that the model would receive."""
        return self.model.has_vision and bool(find_images(prompt).files)

    def _with_images(self, prompt: str) -> dict[str, Any]:
        """Return the user's message with the images that it names."""
        found = find_images(prompt)
        if not self.model.has_vision:
            if found.files:
                echo_note(f"the model cannot read images; '{found.files[0]}' stays text")
            return _message("user", prompt)
        for missing in found.missing:
            echo_note(f"there is no file '{missing}'; it stays text")
        images = [_read_image(path) for path in found.files]
        if images:
            from chaski.cli.image_preview import show_preview
        for path, image in zip(found.files, images, strict=True):
            click.echo(f"Added image '{visible(str(path))}'", err=True)
            show_preview(image)
        return _message("user", found.text) | ({"images": images} if images else {})

    def choose_thinking(self, think: bool | str) -> None:
        """Set whether, or how much, the model thinks.

        Raises OptionError for a local model that cannot think; a server checks its own models.
        """
        from chaski.cli.remote_model import RemoteModel

        can_think = isinstance(self.model, RemoteModel) or "thinking" in self.model.capabilities
        if think and not can_think:
            raise OptionError(f'"{self.name}" does not support thinking')
        self.think = think

    def _output(self) -> AnswerOutput:
        is_text = not self.is_raw and "format" not in self.options
        return AnswerOutput(self.hides_thinking, self.wraps_words, self.renders_markdown and is_text)

    @property
    def _system(self) -> list[dict[str, Any]]:
        return [_message("system", self.system)] if self.system else []

    def _events(self, turn: list[dict[str, Any]]) -> Generator[Event, None, None]:
        if self._may_grow:
            try:
                yield from self._asked(turn, can_reload=True)
                return
            except ContextLengthError as longer:
                if longer.length <= self.model.context:
                    raise
                self._grow(longer.length)
        yield from self._asked(turn)

    def _asked(self, turn: list[dict[str, Any]], **reloading: Any) -> Generator[Event, None, None]:
        if self.is_raw:
            prompt, images = turn[0]["content"], turn[0].get("images", ())
            return self.model.stream(prompt, images, **reloading, **self.options)
        # Old turns may be dropped, but a first message that does not fit is an error.
        options = {"truncate": bool(self.history), **self.options, **reloading}
        if self.tools:
            options["tools"] = self.tools
        if self.think is not None:
            options["think"] = self.think
        return self.model.stream_chat([*self._system, *self.history, *turn], **options)


def _save_here(source: str, name: str, settings: dict[str, Any]) -> None:
    from chaski.names import ModelName
    from chaski.store.create import create
    from chaski.store.model import find_model
    from chaski.store.recipe import Recipe
    from chaski.store.store import Store

    found = find_model(source)
    recipe = Recipe(sources=[found.name] if found.name else [found.path, *found.projectors], **settings)
    for _ in create(Store.default(), ModelName.parse(name), recipe):
        pass


def read_think(text: str) -> bool | str:
    """Return whether to think, or a level. Raises OptionError."""
    words: dict[str, bool | str] = {"true": True, "false": False}
    words |= {level: level for level in ("low", "medium", "high", "max")}
    if text.lower() not in words:
        raise OptionError(f"think is {text!r}; it must be one of {', '.join(words)}")
    return words[text.lower()]


def read_format(text: str) -> str | dict[str, Any]:
    """Return "json", or the JSON schema in a text or in the file that it names. Raises OptionError."""
    if text == "json":
        return text
    if text.lstrip().startswith(("{", "[", '"')):
        return _schema(text, text if len(text) <= _SHOWN_SCHEMA else f"{text[:_SHOWN_SCHEMA]}...")
    path = Path(unescaped(text)).expanduser()
    try:
        data = read_regular(path)
    except OSError as error:
        wanted = "json, a JSON schema, or the file of one"
        raise OptionError(f"format is {text!r:.200}; it must be {wanted}: {error.strerror}") from None
    return _schema(data.decode("utf-8-sig", "replace"), str(path))


def _schema(text: str, shown: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"the format is no JSON: {shown}: {error}") from None
    if not isinstance(found, dict):
        kind = {list: "a list", str: "a text", bool: "a truth value"}.get(type(found), "a number")
        raise OptionError(f"the format is {kind}, but a JSON schema is an object: {shown}")
    return found


def _read_image(path: Path) -> bytes:
    from chaski.errors import ImageError
    from chaski.image import MAX_BYTES, image_format

    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ImageError(f"the image has {size} bytes; at most {MAX_BYTES} are allowed")
        data = read_regular(path)
        image_format(data)
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {error.strerror}") from None
    except ImageError as error:
        raise ImageError(f"{path}: {error}") from None
    return data


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
