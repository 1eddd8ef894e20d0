"""`chaski run`: answer one prompt, or chat."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

import click
from msgspec import Struct

from chaski.cli.completion import model_names
from chaski.cli.devices import device_options
from chaski.cli.nodes import nodes_options, with_nodes
from chaski.cli.quiet_terminal import quiet_terminal
from chaski.cli.session import Session, read_format, read_think
from chaski.names import is_path
from chaski.standard_streams import valid_text

if TYPE_CHECKING:
    from chaski.cli.remote_model import RemoteModel
    from chaski.cli.session import Model
    from chaski.runner.channels.worker.client import LoadOptions
    from chaski.store.model import StoredModel

__all__ = ["command"]

_INTERRUPTED = 130  # the exit status that shells report for a command ended by Ctrl-C


class _Text(click.ParamType[str]):
    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return valid_text(value)


_TEXT = _Text()


def _in_range(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Check an option of answers. As in Ollama, numbers below 0 may stand for the default."""
    from chaski.options import OPTIONS, none_below_zero

    assert param.name is not None, "options have names"
    option = OPTIONS[param.name]
    taken: float | None = none_below_zero(param.name, value)
    if value is not None and not option.allows(taken):
        raise click.BadParameter(f"{value} must be {option.wanted.replace('None', '-1')}.", ctx, param)
    return taken


class _Command(click.Command):
    """Treats `--think` alone as yes. A value must follow =, so that a prompt may follow the option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        options = ["--think=true" if word == "--think" else word for word in args[:end]]
        return super().parse_args(ctx, options + args[end:])


@click.command("run", cls=_Command, short_help="Answer a prompt, or chat.")
@click.argument("model", shell_complete=model_names)
@click.argument("prompt", nargs=-1)
@click.option(
    "--system", type=_TEXT, metavar="TEXT", help="System message at the beginning of the conversation."
)
@click.option("--raw", is_flag=True, help="Send the prompt unchanged, without the chat template.")
@click.option(
    "--num-predict",
    type=int,
    callback=_in_range,
    metavar="N",
    help="Maximum number of tokens to generate; -1 until the model ends, -2 until the context is full.",
)
@click.option(
    "--temperature",
    type=float,
    callback=_in_range,
    metavar="T",
    help="Randomness; 0 takes the most likely token.",
)
@click.option(
    "--top-k", type=int, callback=_in_range, metavar="N", help="Choose among this many tokens; 0 for all."
)
@click.option(
    "--top-p",
    type=float,
    callback=_in_range,
    metavar="P",
    help="Choose among tokens of this total probability.",
)
@click.option(
    "--min-p",
    type=float,
    callback=_in_range,
    metavar="P",
    help="Drop tokens below this share of the top one.",
)
@click.option(
    "--seed",
    type=int,
    callback=_in_range,
    metavar="N",
    help="Number that makes random choices repeatable; -1 for a fresh one.",
)
@click.option(
    "--stop", type=_TEXT, multiple=True, metavar="TEXT", help="End the answer before this text; repeatable."
)
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="Cores to compute on.  [default: physical cores]"
)
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum tokens of prompt and answers.  [default: as many as memory allows]",
)
@click.option(
    "--draft", metavar="MODEL", help="Small model of the same vocabulary that proposes tokens ahead."
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="ADAPTER[=SCALE]",
    help="LoRA adapter to use: a GGUF file, a PEFT folder, or a model with an adapter; repeatable.",
)
@device_options
@nodes_options
@click.option(
    "--engine", metavar="NAME", help="native or llama.cpp.  [default: the one that supports the architecture]"
)
@click.option(
    "--format", "form", metavar="FORMAT", help="Answer in JSON (json), or by this JSON schema or its file."
)
@click.option(
    "--keepalive", metavar="TIME", help="How long a server keeps the model afterwards: 5m, 0, -1 for forever."
)
@click.option(
    "--dimensions", type=click.IntRange(1), metavar="N", help="Keep only the first N elements of a vector."
)
@click.option(
    "--truncate",
    default=True,
    metavar="BOOL",
    help="Cut a text that is too long for a vector.  [default: true]",
)
@click.option("--verbose", is_flag=True, help="Print counts and rates after each answer, on stderr.")
@click.option(
    "--think",
    metavar="LEVEL",
    help="Whether, or how much, the model thinks: true, false, low, medium, high or max.",
)
@click.option(
    "--reasoning-budget", type=int, metavar="N", help="Tokens of thoughts at most; -1 for no limit."
)
@click.option("--hidethinking", is_flag=True, help="Do not print what the model thinks.")
@click.option(
    "--markdown/--nomarkdown", default=True, help="Format answers on a terminal.  [default: markdown]"
)
@click.option("--nowordwrap", is_flag=True, help="Let lines on a terminal break inside words.")
@click.option("--insecure", is_flag=True, help="Allow http:// when the model must be pulled.")
@click.option("--no-store", "no_store", is_flag=True, help="Do not store prompts on disk.")
@click.option("--nohistory", is_flag=True, help="Do not save the lines typed in a chat.")
@click.help_option("-h", "--help")
def command(
    model: str,
    prompt: tuple[str, ...],
    system: str | None,
    raw: bool,
    threads: int | None,
    context: int | None,
    draft: str | None,
    adapters: tuple[str, ...],
    backend: str | None,
    placing: dict[str, Any],
    nodes: str | None,
    split: str | None,
    engine: str | None,
    form: str | None,
    keepalive: str | None,
    dimensions: int | None,
    truncate: bool,
    verbose: bool,
    think: str | None,
    hidethinking: bool,
    markdown: bool,
    nowordwrap: bool,
    insecure: bool,
    no_store: bool,
    nohistory: bool,
    **options: object,
) -> None:
    """Answer PROMPT with MODEL, a name, link or path to a GGUF file; without a prompt, chat.

    Text on the standard input is placed before the prompt. A path in the prompt, such as ./cat.png, sends
    that image to a vision model. A missing model is pulled. If a running server has the model, it answers,
    unless an option sets how to load the model. An embedding model prints the vector of the prompt.
    """
    from chaski.cli.adapter_options import read_adapters
    from chaski.cli.vectors import makes_vectors, vector
    from chaski.durations import parse_duration
    from chaski.env import Environment
    from chaski.pasted import pasted_name

    if verbose:
        logging.getLogger("chaski.text").setLevel(logging.INFO)
    model = model if os.path.exists(model) else pasted_name(model)
    text = _whole_prompt(prompt)
    if keepalive is not None:
        parse_duration(keepalive)
    given = _answer_options({**options, **({"no_store": True} if no_store else {})}, form)
    if adapters:
        given["adapter"] = read_adapters(adapters)
    names = tuple(name for name, _ in given.get("adapter", ()))
    backend = with_nodes(backend, nodes, split)
    opened = _Opener(threads, context, draft, names, backend, placing, engine, keepalive, insecure)
    with _keys_for_later(text is None):
        session = Session(opened(model), given, system, raw, verbose, name=model, open=opened)
        session.hides_thinking, session.wraps_words = hidethinking, not nowordwrap
        session.renders_markdown, session.can_grow = markdown, context is None
        session.keeps_lines = not (nohistory or Environment.read().no_history)
        with closing(session):
            if think is not None:
                session.choose_thinking(read_think(think))
            if not makes_vectors(session.model):
                _talk(session, text)
            elif text:
                click.echo(vector(session.model, text, dimensions, truncate))
            else:
                raise click.UsageError("an embedding model needs a text")


@contextmanager
def _keys_for_later(is_chat: bool) -> Iterator[None]:
    """Keep what is typed while a model is loaded or answers for the chat's prompt, or for the shell's."""
    if not is_chat:
        with quiet_terminal():
            yield
        return
    from chaski.cli.line_editor import can_edit, preload

    if can_edit():
        # The editor is imported while the model is loaded.
        Thread(target=preload, daemon=True).start()
        with quiet_terminal(keeps_keys=True):
            yield
    else:
        yield


class _Opener(Struct, frozen=True):
    """Opens a model on a running server that has it, else, or if an option sets how to load it, locally."""

    threads: int | None
    context: int | None
    draft: str | None
    adapters: tuple[str, ...]
    backend: str | None
    placing: Mapping[str, Any]
    engine: str | None
    keepalive: str | None
    insecure: bool

    def __call__(
        self,
        name: str,
        num_ctx: int | None = None,
        num_thread: int | None = None,
        needed_context: int | None = None,
        **placing: Any,
    ) -> Model:
        """Open a model. These arguments take precedence over the options of the command.

        placing: options of `chaski.load` on devices; a number below 0 stands for the command's own

        Raises ModelNotFoundError, and UsageError for `--keepalive` without a server.
        """
        from chaski.cli.adapter_options import adapter_files
        from chaski.cli.local import load_for_chat

        loading: LoadOptions = {
            "threads": num_thread or self.threads,
            "context": num_ctx or self.context,
        }
        given = {name: value for name, value in placing.items() if value not in (None, -1)}
        loading |= cast("LoadOptions", {**self.placing, **given})
        is_own_choice = bool(self.draft or self.adapters or self.engine or self.backend)
        is_own_choice |= any(value is not None for value in loading.values())
        served = None if is_own_choice or is_path(name) else _of_server(name)
        if served is not None:
            served.keep_alive = self.keepalive
            return served
        if self.keepalive is not None:
            raise click.UsageError("--keepalive needs a running server; start one with chaski serve")
        found = _found(name, self.insecure)
        draft = None if self.draft is None else str(_found(self.draft, self.insecure).path)
        loading |= {
            "needed_context": needed_context,
            "backend": self.backend,
            "engine": self.engine,
            "draft": draft,
            "adapters": adapter_files(self.adapters, found.path) if self.adapters else None,
        }
        return load_for_chat(found, name, **loading)


def _answer_options(options: Mapping[str, object], form: str | None) -> dict[str, Any]:
    """Check and return the given options. Raises OptionError or SamplingError."""
    from chaski.chat.options import parse_options

    given = {name: value for name, value in options.items() if value not in (None, ())}
    if form is not None:
        given["format"] = read_format(form)
    parse_options(given)
    return given


def _talk(session: Session, text: str | None) -> None:
    """Answer the prompt; chat if there is none."""
    if text is not None:
        if not session.answer(text):
            raise click.exceptions.Exit(_INTERRUPTED)
        return
    from chaski.cli.chat import chat

    chat(session)


def _of_server(model: str) -> RemoteModel | None:
    """Return the model of a running server; None if there is no server, or it lacks the model."""
    from chaski.cli.remote_model import RemoteModel
    from chaski.errors import ModelNotFoundError
    from chaski.remote import running_server

    remote = running_server()
    if not remote.is_there():
        return None
    try:
        return RemoteModel(remote, model)
    except ModelNotFoundError:
        return None


def _found(model: str, insecure: bool) -> StoredModel:
    """Find a model, pulling it if it is missing and not a path. Raises ModelNotFoundError."""
    from chaski.cli.pull import pull_model
    from chaski.errors import ModelNotFoundError, OptionError, RegistryError
    from chaski.store.model import find_model

    try:
        return find_model(model)
    except ModelNotFoundError as error:
        if is_path(model):
            raise
        try:
            pull_model(model, insecure)
        except (ModelNotFoundError, RegistryError, OptionError) as failure:
            raise ModelNotFoundError(f"{model} cannot be pulled: {failure}; {error}") from None
    return find_model(model)


def _whole_prompt(arguments: tuple[str, ...]) -> str | None:
    """Return the piped text and the arguments as one prompt; None if there is neither, on a terminal."""
    is_piped = not sys.stdin.isatty()
    piped = sys.stdin.buffer.read().decode(sys.stdin.encoding, "replace").strip() if is_piped else ""
    text = " ".join(filter(None, (piped, valid_text(" ".join(arguments)))))
    if is_piped and not text:
        raise click.UsageError("the standard input is empty; give a prompt")
    return text or None
