"""Tools of the Responses API that clients run, and items of their calls.

To the model each of them is a function; what it calls goes to the client in the item of the tool's own type,
and such items in the input are read as calls of that function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from chaski.errors import OptionError
from chaski.server.dialects.common.custom import PARAMETERS, custom_description, custom_input
from chaski.server.dialects.common.tools import function_tool
from chaski.server.dialects.openai.conversation import call_of
from chaski.server.fields.ignored import Ignored
from chaski.server.fields.reader import Fields
from chaski.server.network.jsons import InnerJson, dump_text

__all__ = ["FORMS", "FUNCTION", "Form", "Tool", "form_of_call", "read_call", "read_tools"]

_Arguments = Mapping[str, Any]

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_WHOLE = {"type": "integer"}


def _object(required: list[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


class Form(Struct, frozen=True):
    """The form of calls of one type of tool.

    call         the type of the item
    prefix       what ids of items begin with
    stream       the name of its events that bring `field` in pieces; empty for items that come whole
    field        what those bring
    to_item      the fields of a call, from its arguments
    to_arguments the arguments, from an item; they may be JSON
    name, description, parameters   of the function, for tools that have no name of their own
    """

    call: str
    prefix: str
    to_item: Callable[[_Arguments], Mapping[str, Any]]
    to_arguments: Callable[[Fields], _Arguments | str]
    stream: str = ""
    field: str = ""
    name: str = ""
    description: str = ""
    parameters: Mapping[str, Any] | None = None


class Tool(Struct, frozen=True):
    """A tool of a request. namespace: that it belongs to, or nothing."""

    form: Form
    name: str
    namespace: str = ""
    description: str = ""
    parameters: Mapping[str, Any] | None = None

    @property
    def full_name(self) -> str:
        """The name of the tool towards the model: with its namespace, if it has one."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def function(self) -> dict[str, Any]:
        """The tool in Ollama's form."""
        described = {"name": self.full_name, "description": self.description}
        return {"type": "function", "function": described | {"parameters": dict(self.parameters or {})}}

    def item(self, arguments: _Arguments) -> dict[str, Any]:
        """The fields of a call's item that hold its name and arguments."""
        named = {"name": self.name} if not self.form.name else {}
        within = {"namespace": self.namespace} if self.namespace else {}
        return {**named, **within, **self.form.to_item(arguments)}


def _strings(value: object) -> list[str]:
    """A command as its words; a line is for the shell."""
    if isinstance(value, str):
        return ["bash", "-lc", value]
    return [str(word) for word in value] if isinstance(value, list) else []


def _lines(value: object) -> list[str]:
    return [value] if isinstance(value, str) else _strings(value)


def _number(arguments: _Arguments, name: str) -> int | None:
    value = arguments.get(name)
    return value if type(value) is int else None


def _words(arguments: _Arguments, name: str, default: str | None = "") -> str | None:
    value = arguments.get(name)
    return value if isinstance(value, str) else default


def _shell_item(arguments: _Arguments) -> Mapping[str, Any]:
    numbers = {name: _number(arguments, name) for name in ("timeout_ms", "max_output_length")}
    return {"action": {"commands": _lines(arguments.get("commands")), **numbers}}


def _local_shell_item(arguments: _Arguments) -> Mapping[str, Any]:
    action: dict[str, object] = {
        "type": "exec",
        "command": _strings(arguments.get("command")),
        "env": {},
        "timeout_ms": _number(arguments, "timeout_ms"),
        "working_directory": _words(arguments, "working_directory", None),
        "user": None,
    }
    return {"action": action}


def _patch_item(arguments: _Arguments) -> Mapping[str, Any]:
    kind = _words(arguments, "type", "update_file")
    operation = {"type": kind, "path": _words(arguments, "path")}
    return {
        "operation": operation if kind == "delete_file" else operation | {"diff": _words(arguments, "diff")}
    }


def _within(field: str, parameters: Mapping[str, Any]) -> Callable[[Fields], _Arguments]:
    """The arguments are fields of an object, which clients bring in any order."""

    def read(item: Fields) -> _Arguments:
        given = item.mapping(field)
        return {name: given[name] for name in parameters["properties"] if given.get(name) is not None}

    return read


_LOCAL_SHELL = _object(["command"], command=_TEXTS, working_directory=_TEXT, timeout_ms=_WHOLE)
_SHELL = _object(["commands"], commands=_TEXTS, timeout_ms=_WHOLE, max_output_length=_WHOLE)
_PATCH = _object(
    ["type", "path"],
    type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
    path=_TEXT,
    diff=_TEXT,
)


FUNCTION = Form(
    call="function_call",
    prefix="fc",
    to_item=lambda arguments: {"arguments": dump_text(arguments)},
    to_arguments=lambda item: item.text("arguments"),
    stream="function_call_arguments",
    field="arguments",
)
CUSTOM = Form(
    call="custom_tool_call",
    prefix="ctc",
    to_item=lambda arguments: {"input": custom_input(arguments)},
    to_arguments=lambda item: {"input": item.text("input")},
    stream="custom_tool_call_input",
    field="input",
    parameters=PARAMETERS,
)
FORMS: Mapping[str, Form] = {
    "function": FUNCTION,
    "custom": CUSTOM,
    "local_shell": Form(
        call="local_shell_call",
        prefix="lsh",
        to_item=_local_shell_item,
        to_arguments=_within("action", _LOCAL_SHELL),
        name="local_shell",
        description="Runs a command on the user's machine and gives its output.",
        parameters=_LOCAL_SHELL,
    ),
    "shell": Form(
        call="shell_call",
        prefix="sh",
        to_item=_shell_item,
        to_arguments=_within("action", _SHELL),
        name="shell",
        description="Runs commands, each a line for the shell, and gives what they write.",
        parameters=_SHELL,
    ),
    "apply_patch": Form(
        call="apply_patch_call",
        prefix="apc",
        to_item=_patch_item,
        to_arguments=_within("operation", _PATCH),
        name="apply_patch",
        description="Creates, changes or deletes a file. A diff is in the unified format, without its head.",
        parameters=_PATCH,
    ),
    "tool_search": Form(
        call="tool_search_call",
        prefix="tsc",
        to_item=lambda arguments: {"execution": "client", "arguments": dict(arguments)},
        to_arguments=lambda item: item.mapping("arguments"),
        name="tool_search",
        description="Finds more tools.",
        parameters=_object([], query=_TEXT),
    ),
}
"""By the types of tools. Others run at their maker's."""

_CALLS = {form.call: form for form in FORMS.values()}


def form_of_call(kind: str) -> Form | None:
    """The form of items of a type, if it is one of calls that clients run."""
    return _CALLS.get(kind)


def read_tools(fields: Fields, ignored: Ignored, namespace: str = "") -> Iterator[Tool]:
    """The tools of a request that clients run; the others are noted as ignored. Raises OptionError."""
    for given in fields.objects("tools"):
        tool = _flat(given)
        kind, name = tool.text("type"), tool.text("name")
        form = FORMS.get(kind)
        if kind == "namespace" and name and not namespace:
            yield from read_tools(tool, ignored, name)
        elif kind == "namespace" or (form in (FUNCTION, CUSTOM) and not name):
            raise OptionError("a tool has no name")
        elif form is None or not _is_for_client(tool):
            ignored.add("tool", kind)
        else:
            yield _tool(form, tool, namespace, ignored)


def _flat(tool: Fields) -> Fields:
    """Return a function in the form of this API, also if it came in the form of another one."""
    if tool.has("function") or tool.has("input_schema") or not tool.has("type"):
        found = function_tool(tool)
        return tool if found is None else Fields({"type": "function", **found["function"]}, tool.where)
    return tool


def read_call(item: Fields, inner: InnerJson) -> dict[str, Any]:
    """A call in Ollama's form. Raises OptionError."""
    kind = item.text("type")
    form = _CALLS[kind]
    call_id = item.text("call_id", "id") if form.name else item.text("call_id")
    if not call_id:
        raise OptionError(f"{kind} item missing required 'call_id' field")
    namespace, name = item.text("namespace"), form.name or item.text("name")
    arguments = form.to_arguments(item)
    full_name = f"{namespace}.{name}" if namespace else name
    if isinstance(arguments, str):
        return call_of(call_id, full_name, arguments, inner)
    return {"id": call_id, "function": {"name": full_name, "arguments": dict(arguments)}}


def _is_for_client(tool: Fields) -> bool:
    """Shells may run in a container of the maker's, and searches on its server."""
    match tool.text("type"):
        case "shell":
            environment = Fields(tool.mapping("environment"), "environment")
            return environment.text("type", default="local") == "local"
        case "tool_search":
            return tool.text("execution", default="server") == "client"
        case _:
            return True


def _tool(form: Form, tool: Fields, namespace: str, ignored: Ignored) -> Tool:
    description = tool.text("description", default=form.description)
    parameters = tool.mapping("parameters") or form.parameters
    if form is CUSTOM:
        format = Fields(tool.mapping("format"), "format")
        description = custom_description(tool.text("name"), description, format, ignored)
    return Tool(form, form.name or tool.text("name"), namespace, description, parameters)
