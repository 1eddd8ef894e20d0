"""Switches, levels and budgets of thinking on `/v1`. The fields in which clients send them must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaski.chat.efforts import EFFORTS
from chaski.chat.formats import Think
from chaski.errors import OptionError
from chaski.server.fields.reader import Fields

__all__ = ["Think", "agreed", "read_budget", "read_thinking", "template_variables"]

_EFFORTS: Mapping[str, bool | str] = {"none": False, **{name: name for name in EFFORTS}, "ultra": "max"}
# The names of chaski, vLLM, llama.cpp (two) and Qwen's makers.
_BUDGETS = (
    "reasoning_budget",
    "thinking_token_budget",
    "thinking_budget_tokens",
    "reasoning_budget_tokens",
    "thinking_budget",
)
_SWITCHES = ("enable_thinking", "thinking")
_RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")


def read_thinking(fields: Fields) -> dict[str, Think]:
    """Return a request's thinking settings by field; None for unset fields. Raises OptionError."""
    found: dict[str, Think] = {"enable_thinking": _flag(fields, "enable_thinking")}
    value = fields.data.get("think")
    found["think"] = value if isinstance(value, bool) else _effort(fields, "think")
    found["reasoning_effort"] = _effort(fields, "reasoning_effort")
    reasoning = Fields(fields.mapping("reasoning"), "reasoning")
    found["reasoning.enabled"] = _flag(reasoning, "enabled")
    found["reasoning.effort"] = _effort(reasoning, "effort")
    variables = _variables(fields)
    for name in _SWITCHES:
        found[f"chat_template_kwargs.{name}"] = _flag(variables, name)
    found["chat_template_kwargs.reasoning_effort"] = _effort(variables, "reasoning_effort")
    return found


def read_budget(fields: Fields, **others: int | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options of a request's budget, and the names of the fields that gave them.

    others: the same from fields that only one API has, by name. Raises OptionError if two of them differ.
    """
    reasoning = Fields(fields.mapping("reasoning"), "reasoning")
    found = {name: fields.integer(name, None) for name in _BUDGETS}
    found["reasoning.max_tokens"] = reasoning.integer("max_tokens", None)
    names = {value: name for name, value in (found | others).items() if value is not None}
    _require_one(list(names.values()))
    options: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for value, name in names.items():
        options["reasoning_budget"], given_as["reasoning_budget"] = value, name
    if fields.has("reasoning_budget_message"):
        options["reasoning_budget_message"] = fields.text("reasoning_budget_message")
    return options, given_as


def agreed(found: Mapping[str, Think]) -> Think:
    """Return the value on which all set fields agree; None if no field is set. Raises OptionError.

    A level such as "high" agrees with True and takes precedence over it.
    """
    said = {name: value for name, value in found.items() if value is not None}
    levels = {name: value for name, value in said.items() if isinstance(value, str)}
    for kind in ({name: value is not False for name, value in said.items()}, levels):
        names: dict[object, str] = {}
        for name, value in kind.items():
            names.setdefault(value, name)
        _require_one(list(names.values()))
    return next(iter((levels or said).values()), None)


def _require_one(names: Sequence[str]) -> None:
    """Raise OptionError for fields whose values differ."""
    if len(names) > 1:
        raise OptionError(
            f"{names[0]} and {names[1]} contradict each other about thinking; leave one of them out"
        )


def template_variables(fields: Fields) -> dict[str, Any]:
    """Return the template variables of a request, except those that set thinking. Raises OptionError."""
    variables = _variables(fields).data
    if reserved := [name for name in _RESERVED if name in variables]:
        raise OptionError(f"chat_template_kwargs.{reserved[0]} is set by the request itself; leave it out")
    known = (*_SWITCHES, "reasoning_effort")
    return {name: value for name, value in variables.items() if name not in known}


def _variables(fields: Fields) -> Fields:
    return Fields(fields.mapping("chat_template_kwargs"), "chat_template_kwargs")


def _flag(fields: Fields, name: str) -> bool | None:
    return fields.flag(name, False) if fields.has(name) else None


def _effort(fields: Fields, name: str) -> Think:
    """Return a level, which is given in OpenAI's or Ollama's words; None if it is unset."""
    word = fields.text(name)
    if word and word not in _EFFORTS:
        where = f"{fields.where}.{name}" if fields.where else name
        raise OptionError(f"{where} {word!r:.40} must be one of {', '.join(_EFFORTS)}")
    return _EFFORTS[word] if word else None
