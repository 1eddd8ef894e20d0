"""The interactive chat: reads messages, answers them and runs commands that begin with a slash."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from chaski.cli.adapter_options import read_adapters
from chaski.cli.chat_figures import cache_text, stats_text
from chaski.cli.chat_help import HELP, HINT, PARAMETERS, SET_HELP, SETTINGS, SHOW_HELP, SHOWN, TOPICS, WORDS
from chaski.cli.layout import section
from chaski.cli.line_editor import CONTINUATION, MESSAGE_PROMPT, Lines, line_editing
from chaski.cli.session import Session, read_format, read_think
from chaski.cli.terminal import echo_text, wrapped
from chaski.cli.tools import read_tools, tool_table
from chaski.cli.typed_words import unescaped
from chaski.errors import ChaskiError, OptionError
from chaski.options import OPTIONS, Kind
from chaski.suggestions import CHAT_VERBS, suggestion

__all__ = ["chat"]

_QUOTES = '"""'


def chat(session: Session) -> None:
    """Chat until the input ends or the user leaves. An error ends the current message, not the chat."""
    session.print_opening()
    with line_editing(session.keeps_lines, WORDS, HINT) as lines:
        session.read = lines
        _talk(session, lines)


def _talk(session: Session, lines: Lines) -> None:
    for message in _messages(lines):
        command, _, argument = message.partition(" ")
        if command in ("/bye", "/exit"):
            return
        try:
            if command in _COMMANDS:
                _COMMANDS[command](session, argument.strip())
            elif message.startswith("/") and not session.shows_image(message):
                question = suggestion(command, (*WORDS, *SETTINGS.values()), CHAT_VERBS)
                raise OptionError(f"unknown command '{command}'; {question or 'type /? for help'}")
            else:
                session.answer(message)
        except (ChaskiError, click.ClickException) as error:
            text = error.format_message() if isinstance(error, click.ClickException) else str(error)
            click.echo(f"Error: {wrapped(text, 'Error: ')}", err=True)


def _messages(lines: Lines) -> Iterator[str]:
    """Yield the user's messages until the input ends."""
    while True:
        try:
            message = _read_message(lines)
        except EOFError:
            return
        except KeyboardInterrupt:
            click.echo("Use Ctrl-D or /bye to leave.")
            continue
        if message:
            yield message


def _read_message(lines: Lines) -> str:
    """Read one message: a line, a paste, or all lines between two triple quotes."""
    typed = lines(MESSAGE_PROMPT)
    begin, quotes, rest = typed.partition(_QUOTES)
    if not quotes or (begin.strip() and not begin.startswith("/set system")):
        lines.remember(typed)
        return typed.strip()
    while _QUOTES not in rest:
        rest += "\n" + lines(CONTINUATION)
    lines.remember(begin + quotes + rest)
    return (begin + rest.partition(_QUOTES)[0]).strip()


_SWITCHES = {
    "history": ("keeps_history", True, "The model remembers the conversation."),
    "nohistory": ("keeps_history", False, "The model answers each message on its own."),
    "verbose": ("is_verbose", True, "Counts and rates are printed after each answer."),
    "quiet": ("is_verbose", False, "Counts and rates are not printed."),
    "wordwrap": ("wraps_words", True, "Lines break between words."),
    "nowordwrap": ("wraps_words", False, "Lines break anywhere."),
    "markdown": ("renders_markdown", True, "Answers are formatted."),
    "nomarkdown": ("renders_markdown", False, "Answers are printed as their source text."),
}


def _set(session: Session, argument: str) -> None:
    what, _, value = argument.partition(" ")
    value = value.strip()
    match what:
        case "":
            click.echo(SET_HELP)
        case "parameter":
            _set_parameter(session, value.split())
        case "system":
            session.system = value or None
            click.echo("The system message is set." if value else "There is no system message.")
        case "format":
            session.options["format"] = read_format(value or "json")
            click.echo("Answers are JSON." if value in ("", "json") else "Answers follow the JSON schema.")
        case "noformat":
            session.options.pop("format", None)
            click.echo("Answers are text.")
        case "think":
            session.choose_thinking(read_think(value or "true"))
            click.echo(f"Thinking is set to {value}." if value else "The model thinks before it answers.")
        case "nothink":
            session.choose_thinking(False)
            click.echo("The model answers without thinking.")
        case _ if what in _SWITCHES:
            attribute, is_on, confirmation = _SWITCHES[what]
            setattr(session, attribute, is_on)
            click.echo(confirmation)
        case _:
            question = suggestion(what, SETTINGS)
            raise OptionError(f"/set has no setting '{what}'; {question or 'type /set for help'}")


def _set_parameter(session: Session, words: list[str]) -> None:
    if len(words) < 2:
        raise OptionError("/set parameter needs a name and a value")
    name, *values = words
    if name not in OPTIONS:
        known = [each for names in PARAMETERS.values() for each in names]
        question = suggestion(name, known) or "/? parameters lists all"
        raise OptionError(f"option '{name}' is unknown; {question}")
    session.set_parameter(name, _parameter(name, values))
    click.echo(f"Set parameter '{name}' to '{' '.join(values)}'")


def _parameter(name: str, words: list[str]) -> Any:
    """Return the value of an option: a list, a text, or a parsed word."""
    if name == "adapter":
        return read_adapters(words)
    match OPTIONS[name].kind if name in OPTIONS else Kind.OTHER:
        case Kind.TOKENS:
            return [_number(word) for word in words]
        case Kind.TEXTS:
            return words
        case Kind.TEXT:
            return " ".join(words)
        case _:
            return _number(" ".join(words))


def _number(text: str) -> Any:
    """Parse a JSON number or boolean. Return any other text as it is, which the option then rejects."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _show(session: Session, argument: str) -> None:
    model = session.model
    match argument:
        case "":
            click.echo(SHOW_HELP)
        case "info":
            rows = [("file", model.path), ("context", model.context), ("vocabulary", model.vocab_size)]
            click.echo(section("Model", rows))
        case "parameters":
            options = sorted((session.options | session.loading).items())
            click.echo(section("Parameters", options) or "No parameters are set.")
        case "system":
            echo_text(session.system or model.defaults.system or "No system message is set.")
        case "template":
            echo_text(model.chat_template or "The model has no chat template.")
        case "license" | "modelfile":
            from chaski.cli.show import command as show

            show.main([session.name, f"--{argument}"], standalone_mode=False)
        case _:
            question = suggestion(argument, SHOWN)
            raise OptionError(f"/show has no topic '{argument}'; {question or 'type /show for help'}")


def _load(session: Session, argument: str) -> None:
    if not argument:
        raise OptionError("/load needs the name of a model")
    session.load(argument)


def _save(session: Session, argument: str) -> None:
    if not argument:
        raise OptionError("/save needs a name for the model")
    session.save(argument)
    click.echo(f"Created new model '{argument}'")


def _list(session: Session, argument: str) -> None:
    from chaski.cli.list import command as list_models

    list_models.main([argument] if argument else [], standalone_mode=False)


def _clear(session: Session, argument: str) -> None:
    session.clear()
    click.echo("Cleared the conversation.")


def _tools(session: Session, argument: str) -> None:
    """List the tools. `load FILE` adds the tools of a file, and `clear` removes all."""
    what, _, name = argument.partition(" ")
    match what:
        case "load" if name.strip():
            if "tools" not in session.model.capabilities:
                raise OptionError(f'"{session.name}" cannot call tools: its template does not support them')
            added = read_tools(Path(unescaped(name.strip())))
            names = {tool["function"]["name"] for tool in added}
            session.tools = [tool for tool in session.tools if tool["function"]["name"] not in names] + added
            click.echo(tool_table(added))
        case "clear":
            session.tools.clear()
            click.echo("The model has no tools.")
        case "":
            click.echo(tool_table(session.tools) if session.tools else "The model has no tools.")
        case _:
            raise OptionError("use /tools load FILE or /tools clear; /tools alone lists the tools")


def _cache(session: Session, argument: str) -> None:
    from chaski.runner.llm import LLM

    model = session.model
    if not isinstance(model, LLM):
        tiers = model.prefixes()
    else:
        tiers = () if model.engine.tiers is None else model.engine.tiers.uses()
    click.echo(cache_text(model.context, session.turns, tiers))


def _stats(session: Session, argument: str) -> None:
    click.echo(stats_text(session.answers))


def _help(session: Session, argument: str) -> None:
    if argument and argument.removeprefix("/") not in TOPICS:
        raise OptionError(f"there is no help on '{argument}'; the topics are {', '.join(TOPICS)}")
    click.echo(TOPICS[argument.removeprefix("/")] if argument else HELP)


_COMMANDS: dict[str, Callable[[Session, str], None]] = {
    "/set": _set,
    "/show": _show,
    "/load": _load,
    "/save": _save,
    "/list": _list,
    "/clear": _clear,
    "/tools": _tools,
    "/cache": _cache,
    "/stats": _stats,
    "/?": _help,
    "/help": _help,
}
