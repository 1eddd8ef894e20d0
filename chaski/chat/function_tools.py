"""Python functions as tools: their names, type hints and docstrings become the description for a model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from chaski.chat.type_schemas import type_schema
from chaski.errors import OptionError

__all__ = ["function_tool"]

_SECTION = re.compile(
    r"(args|arguments|parameters|returns?|yields?|raises|examples?|notes?|attributes|warnings?|see also|todo)"
    r"\s*:\s*",
    re.IGNORECASE,
)
_PARAMETERS = ("args", "arguments", "parameters")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def function_tool(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the tool that calls a function, in the format of OpenAI's API.

    Its name is the function's, its description the docstring before the first section. Parameters have the
    schemas of their type hints (`str` without one) and the descriptions of the section `Args:`. Those without
    a default are required, and those that take any number of arguments are left out.

    Raises OptionError for a function without a name, and for a type hint without a schema.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise OptionError(f"tool {function!r:.80} has no name; define a function with def")
    description, about = _described(inspect.getdoc(function) or "")
    required, properties = [], {}
    definitions: dict[str, Any] = {}
    hints, signature = _read(function, name)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        schema = _schema(hints.get(parameter.name, str), f"parameter {parameter.name!r} of tool {name}")
        definitions |= schema.pop("$defs", {})
        if text := about.get(parameter.name):
            schema["description"] = text
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        properties[parameter.name] = schema
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if definitions:
        parameters["$defs"] = definitions
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _read(function: Callable[..., Any], name: str) -> tuple[dict[str, Any], inspect.Signature]:
    try:
        return get_type_hints(inspect.unwrap(function), include_extras=True), inspect.signature(function)
    except (NameError, TypeError, AttributeError, ValueError) as error:
        raise OptionError(f"the type hints of tool {name} cannot be read: {error}") from None


def _schema(hint: Any, place: str) -> dict[str, Any]:
    """Return the schema of a type hint. `X | None` is X: a model leaves out what it does not give."""
    if hint is Any or hint is inspect.Parameter.empty:
        return {}
    if get_origin(hint) in (Union, UnionType):
        hint = reduce(or_, (each for each in get_args(hint) if each is not NoneType))
    if get_origin(hint) is Annotated and isinstance(text := get_args(hint)[1], str):
        return {**_schema(get_args(hint)[0], place), "description": text}
    try:
        found = type_schema(hint)
    except (TypeError, NameError) as error:
        raise OptionError(f"{place} is a {hint!r:.80}, which has no JSON schema: {error!s:.120}") from None
    if found is None:
        raise OptionError(f"{place} is annotated as {hint!r:.80}, which is not a type")
    if get_origin(hint) is Literal and all(isinstance(each, str) for each in get_args(hint)):
        found["type"] = "string"  # templates write the type of each parameter
    return found


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring before its first section, and the descriptions of its parameters."""
    text: list[str] = []
    found: dict[str, str] = {}
    section, name, margin = "", "", -1
    for line in doc.splitlines():
        indent = len(line) - len(line.lstrip())
        if not indent and (heading := _SECTION.fullmatch(line)):
            section, margin = heading[1].lower(), -1
        elif not section:
            text.append(line)
        elif section in _PARAMETERS and line.strip():
            margin = indent if margin < 0 else margin
            entry = _ENTRY.fullmatch(line.strip()) if indent == margin else None
            if entry:
                name = entry[1]
                found[name] = entry[2]
            elif name:
                found[name] = f"{found[name]} {line.strip()}".strip()
    return "\n".join(text).strip(), found
