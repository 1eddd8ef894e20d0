"""Function tools in the form of any dialect, since clients mix these forms up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chaski.errors import OptionError
from chaski.server.fields.reader import Fields

__all__ = ["function_tool", "require_distinct"]


def function_tool(tool: Fields, is_custom_function: bool = False) -> dict[str, Any] | None:
    """Return a tool in Ollama's form, which is that of chat completions; None if it is not a function.

    In the Responses API, the tool itself contains `name`, `description` and `parameters`. In Anthropic's API,
    it contains `name`, `description` and `input_schema`, and its type may be `custom`, which is another kind
    of tool in other APIs.

    is_custom_function: whether a tool of the type `custom` is a function even without `input_schema`

    Raises OptionError for a function without a name.
    """
    is_anthropic = tool.has("input_schema")
    kind = tool.text("type", default="function")
    if kind != "function" and not (kind == "custom" and (is_anthropic or is_custom_function)):
        return None
    if tool.has("function"):
        function = Fields(tool.mapping("function"), f"{tool.where}.function")
        found = {**tool.data, "type": "function", "function": function.data}
    else:
        function = tool
        parameters = tool.mapping("input_schema" if is_anthropic else "parameters")
        described = {"name": tool.text("name"), "description": tool.text("description")}
        found = {"type": "function", "function": {**described, "parameters": dict(parameters)}}
    if not function.text("name"):
        raise OptionError(
            f"{function.where}.name is missing; a tool has the form "
            '{"type": "function", "function": {"name": …, "description": …, "parameters": …}}'
        )
    return found


def require_distinct(tools: Iterable[Mapping[str, Any]]) -> None:
    """Raise OptionError if two different tools have the same name, since the model could call only one.

    One tool may appear twice, unless its name contains U+FFFD, since the original names may have differed.
    """
    earlier: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            continue
        if name in earlier and (tool != earlier[name] or "\ufffd" in name):
            raise OptionError(f"tools contains two tools with the name '{name:.100}'; give each its own name")
        earlier[name] = tool
