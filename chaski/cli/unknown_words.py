"""Errors about unknown commands and options that propose the right ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import click

from chaski.suggestions import VERBS, advice, equivalent, normalized, suggestion

__all__ = ["Commands", "missing_model", "unknown_option", "with_question"]

_MODEL_COMMANDS = ("run",)
_ANSWERING_COMMANDS = ("run", "serve")
_MISSING = re.compile(r"model (['\"])(.+?)\1 (?:not found|to stop)")


class Commands(click.Group):
    """A group that proposes commands for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. Raises UsageError with a proposal if it is unknown."""
        word = args[0]
        if ctx.resilient_parsing or word.startswith("-") or self.get_command(ctx, word) is not None:
            return super().resolve_command(ctx, args)
        question = suggestion(word, self.list_commands(ctx), VERBS)
        if not question and ctx.parent is None and _is_model(word):
            question = f"did you mean {ctx.command_path} run {word}?"
        if ctx.parent is None and (instead := advice(word, is_command=True)):
            question = f"{instead}."
        raise click.UsageError(with_question(f"No such command '{word}'.", question), ctx)


def with_question(problem: str, question: str) -> str:
    """Return a problem as a sentence, and a question as another one if there is one."""
    return f"{problem} {question[:1].upper()}{question[1:]}".rstrip()


def unknown_option(error: click.NoSuchOption, words: Sequence[str]) -> click.UsageError:
    """Return the error about an unknown option, with a proposal.

    words  all words after `chaski`; click reports only the first letter of an option such as -ngl
    """
    typed = _typed(error.option_name, words)
    problem = f"No such option '{typed}'."
    if error.ctx is None:
        return click.UsageError(problem)
    if error.ctx.parent is None:
        example = f"{error.ctx.command_path} run MODEL --context 8192"
        return click.UsageError(f"{problem} Options follow a command, as in: {example}", error.ctx)
    known = _known(error.ctx)
    is_answering = error.ctx.command.name in _ANSWERING_COMMANDS
    instead = advice(typed) if is_answering and not equivalent(typed, known) else ""
    text = f"{instead}." if instead else suggestion(typed, known)
    return click.UsageError(with_question(problem, text), error.ctx)


def missing_model(problem: str) -> str:
    """Return the message about a missing model, with a proposal if a model here has a similar name."""
    if "?" in problem or (found := _MISSING.search(problem)) is None:
        return problem
    from chaski.cli.completion import known_models
    from chaski.store.model import model_question

    question = model_question(found[2], known_models(""))
    return f"{problem}; {question}" if question else problem


def _typed(option: str, words: Iterable[str]) -> str:
    """Return the option as it was typed, without its value."""
    if option.startswith("--"):
        return option
    for word in words:
        name = word.partition("=")[0]
        if (
            len(name) > 2
            and name[1] != "-"
            and option[1:] in name
            and name.startswith("-")
            and name.isascii()
        ):
            return name if not name[2].isdecimal() else option
    return option


def _known(ctx: click.Context) -> Mapping[str, str]:
    """Return what the options, arguments and variables of a command are called, by normalized names."""
    from chaski.env import variables

    known = {row.name: f"the environment variable {row.name}" for row in variables()}
    for parameter in ctx.command.params:
        is_option = isinstance(parameter, click.Option)
        for word in parameter.opts:
            known[normalized(word)] = word if is_option else f"the argument {word.upper()}"
    if ctx.command.name in _MODEL_COMMANDS:
        known = {**_parameters(known), **known}
    return known


def _parameters(known: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of answers that a chat or a Modelfile can set, but the command cannot."""
    from chaski.options import MODELFILE, names_of

    return {
        name: f"PARAMETER {name} in a Modelfile, or /set parameter {name} in a chat"
        for name in names_of(MODELFILE)
        if equivalent(name, known) is None
    }


def _is_model(word: str) -> bool:
    from chaski.cli.completion import known_models
    from chaski.errors import ChaskiError
    from chaski.names import ModelName, is_path

    if is_path(word):
        return True
    with suppress(ChaskiError):
        return ModelName.parse(word).short in known_models("")
    return False
