"""The interactive chat: reads messages, answers them, and obeys commands that begin with a slash."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import click

from chaski.cli.history import line_editing
from chaski.cli.layout import section
from chaski.cli.session import Session, read_think
from chaski.errors import ChaskiError, OptionError

__all__ = ["chat"]

_QUOTES = '"""'
_HELP = """\
Available commands:
  /set parameter NAME VALUE ...   set an option: temperature, seed, num_predict, stop ...
  /set system TEXT                set the system message
  /set history | nohistory        remember the conversation, or answer each message alone
  /set format json | noformat     answer in JSON, or in text
  /set think [LEVEL] | nothink    let the model think, or not: low, medium, high, max
  /set verbose | quiet            print counts and rates after each answer, or do not
  /set wordwrap | nowordwrap      break lines between words, or wherever they end
  /show info | license | modelfile | parameters | system | template
  /load MODEL                     go on with another model, and a new conversation
  /save NAME                      make a model of this one with its options, system message and conversation
  /list                           list the models of the store
  /clear                          forget the conversation
  /bye                            leave
  /?                              this help

Use \"\"\" to begin and to end a message of several lines.
A path in a message, like ./cat.png, shows that image to a model that sees.
Ctrl-C stops an answer, Ctrl-D leaves."""


def chat(session: Session) -> None:
    """Talk until the input ends or the user leaves. Errors end a message, not the chat."""
    with line_editing(session.keeps_lines):
        _talk(session)


def _talk(session: Session) -> None:
    for message in _messages():
        command, _, argument = message.partition(" ")
        if command in ("/bye", "/exit"):
            return
        try:
            if command in _COMMANDS:
                _COMMANDS[command](session, argument.strip())
            elif message.startswith("/") and not session.shows_image(message):
                raise OptionError("unknown command; type /? for help")
            else:
                session.answer(message)
        except (ChaskiError, click.ClickException) as error:
            click.echo(f"Error: {error}", err=True)


def _messages() -> Iterator[str]:
    """What the user types, message by message, until the input ends."""
    while True:
        try:
            message = _read_message()
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\nUse Ctrl-D or /bye to leave.")
            continue
        if message:
            yield message


def _read_message() -> str:
    """A line, or all lines between two triple quotes."""
    text = input(">>> ")
    begin, quotes, rest = text.partition(_QUOTES)
    if not quotes or (begin.strip() and not begin.startswith("/set system")):
        return text.strip()
    lines = [rest]
    while _QUOTES not in lines[-1]:
        lines.append(input("... "))
    return (begin + "\n".join(lines).partition(_QUOTES)[0]).strip()


def _set(session: Session, argument: str) -> None:
    what, _, value = argument.partition(" ")
    match what:
        case "parameter":
            _set_parameter(session, value.split())
        case "system":
            session.system = value.strip() or None
        case "history" | "nohistory":
            session.keeps_history = what == "history"
        case "format" if value.strip() == "json":
            session.options["format"] = "json"
        case "noformat":
            session.options.pop("format", None)
        case "think":
            session.choose_thinking(read_think(value.strip() or "true"))
        case "nothink":
            session.choose_thinking(False)
        case "verbose" | "quiet":
            session.is_verbose = what == "verbose"
        case "wordwrap" | "nowordwrap":
            session.wraps_words = what == "wordwrap"
        case _:
            raise OptionError(
                "/set knows parameter, system, history, nohistory, format json, noformat, think, nothink, "
                "verbose, quiet, wordwrap, nowordwrap"
            )


def _set_parameter(session: Session, words: list[str]) -> None:
    from chaski.runner.options import parse_options

    if len(words) < 2:
        raise OptionError("/set parameter needs a name and a value")
    name, *values = words
    value = values if name == "stop" else _number(" ".join(values))
    parse_options({name: value})
    session.options[name] = value
    click.echo(f"Set parameter '{name}' to '{' '.join(values)}'")


def _number(text: str) -> Any:
    """A number or a truth value as JSON writes it, else the text itself, for the option to refuse."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _show(session: Session, argument: str) -> None:
    model = session.model
    match argument:
        case "info":
            rows = [("file", model.path), ("context", model.context), ("vocabulary", model.vocab_size)]
            click.echo(section("Model", rows))
        case "parameters":
            click.echo(section("Parameters", sorted(session.options.items())) or "No parameters are set.")
        case "system":
            click.echo(session.system or model.defaults.system or "No system message is set.")
        case "template":
            click.echo(model.chat_template or "The model has no chat template.")
        case "license" | "modelfile":
            from chaski.cli.show import command as show

            show.main([session.name, f"--{argument}"], standalone_mode=False)
        case _:
            raise OptionError("/show knows info, license, modelfile, parameters, system and template")


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
    session.history.clear()
    click.echo("Cleared the conversation.")


def _help(session: Session, argument: str) -> None:
    click.echo(_HELP)


_COMMANDS: dict[str, Callable[[Session, str], None]] = {
    "/set": _set,
    "/show": _show,
    "/load": _load,
    "/save": _save,
    "/list": _list,
    "/clear": _clear,
    "/?": _help,
    "/help": _help,
}
