"""Tools in a chat: read from a file, called by the model, answered by the user.

No tool runs automatically. For each call the user types the result, or a command that prints it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from chaski.cli.layout import table
from chaski.cli.terminal import echo_text, visible
from chaski.errors import OptionError
from chaski.regular_files import read_regular

if TYPE_CHECKING:
    from chaski.chat.events import ToolCall

__all__ = ["RESULT_PROMPT", "Tool", "as_message", "read_result", "read_tools", "tool_table"]

Tool: TypeAlias = Mapping[str, Any]
"""A tool in OpenAI's format: `{"type": "function", "function": {"name": ..., "parameters": ...}}`."""

RESULT_PROMPT = "result> "
_HINT = "Type its result, or !COMMAND for the output of a command; an empty line refuses the call."
_REFUSED = "The user refused this call."
_MAX_RESULT = 1 << 20


def read_tools(path: Path) -> list[Tool]:
    """Read tools from a JSON file: a list of them, or an object with that list as `tools`.

    Bare functions without `type` are allowed. Raises OptionError with the place of the error.
    """
    try:
        found = json.loads(read_regular(path.expanduser()).decode())
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is not JSON: {error}") from None
    listed = found.get("tools") if isinstance(found, dict) else found
    if not isinstance(listed, list) or not listed:
        raise OptionError(f"{path} must be a list of tools, or an object with a list 'tools'")
    return [_tool(each, f"{path}: tools[{index}]") for index, each in enumerate(listed)]


def _tool(found: Any, place: str) -> Tool:
    function = found.get("function", found) if isinstance(found, dict) else None
    if not isinstance(function, dict) or found.get("type", "function") != "function":
        raise OptionError(f"{place} must be an object of type 'function'")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise OptionError(f"{place} has no name")
    if not isinstance(function.get("parameters", {}), dict):
        raise OptionError(f"{place}: 'parameters' must be the JSON schema of an object")
    named = {key: value for key, value in function.items() if key != "type"}
    return {"type": "function", "function": {"description": "", "parameters": {"type": "object"}, **named}}


def tool_table(tools: Sequence[Tool]) -> str:
    """Return a table of the tools and their arguments, with optional arguments in brackets."""
    functions = [tool["function"] for tool in tools]
    return table([(f"{each['name']}({_arguments(each)})", each["description"]) for each in functions])


def _arguments(function: Mapping[str, Any]) -> str:
    parameters = function["parameters"]
    required, properties = parameters.get("required"), parameters.get("properties")
    needed = required if isinstance(required, list) else []
    names = properties if isinstance(properties, dict) else {}
    return ", ".join(name if name in needed else f"[{name}]" for name in names)


def as_message(call: ToolCall) -> dict[str, Any]:
    """Return a call in the format of the assistant's message."""
    return {"function": {"name": call.name, "arguments": call.arguments}}


def read_result(call: ToolCall, read: Callable[[str], str]) -> dict[str, str]:
    """Show a call and ask the user for its result; return the message for the model."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    echo_text(f"The model calls {call.name} with {arguments}")
    click.echo(_HINT)
    typed = read(RESULT_PROMPT).strip()
    result = _output(typed[1:], arguments) if typed.startswith("!") else typed
    return {"role": "tool", "tool_name": call.name, "content": result or _REFUSED}


def _output(command: str, arguments: str) -> str:
    """Run the user's command. The call's arguments are passed only as JSON on its standard input."""
    import subprocess

    done = subprocess.run(
        command, shell=True, input=arguments.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    text = done.stdout[:_MAX_RESULT].decode(errors="replace").strip()
    click.echo(visible(text))
    return text if done.returncode == 0 else f"{text}\n(exit status {done.returncode})".strip()
