"""Tools of the Responses API that clients run, and the items of their calls.

The model sees each tool as a function. A call is sent to the client as an item of the tool's type, and such
an item in the input is read as a call of the function.
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

    call         type of the item
    prefix       prefix of the ids of items
    stream       name of the events that send `field` in pieces; empty for items that are sent whole
    field        name of the field that is sent in pieces
    to_item      function that converts the arguments of a call to the fields of its item
    to_arguments function that converts an item to arguments, which may be JSON text
    name, description, parameters   of the function, for types of tools with a fixed name
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
    """A tool of a request. `namespace` is empty if the tool belongs to none."""

    form: Form
    name: str
    namespace: str = ""
    description: str = ""
    parameters: Mapping[str, Any] | None = None

    @property
    def full_name(self) -> str:
        """The name that the model sees, which includes the namespace if there is one."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def function(self) -> dict[str, Any]:
        """The tool in Ollama's form."""
        described = {"name": self.full_name, "description": self.description}
        return {"type": "function", "function": described | {"parameters": dict(self.parameters or {})}}

    def item(self, arguments: _Arguments) -> dict[str, Any]:
        """Return the fields of a call's item that contain its name and arguments."""
        named = {"name": self.name} if not self.form.name else {}
        within = {"namespace": self.namespace} if self.namespace else {}
        return {**named, **within, **self.form.to_item(arguments)}


def _strings(value: object) -> list[str]:
    """Return the words of a command. The shell runs a command that is given as one line."""
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
    """Return a function that reads arguments from the object `field`, in the order of `parameters`."""

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
"""Forms by the types of tools. Tools of other types run on the provider's servers."""

_CALLS = {form.call: form for form in FORMS.values()}


def form_of_call(kind: str) -> Form | None:
    """Return the form of calls by the type of their item; None if clients do not run such calls."""
    return _CALLS.get(kind)


def read_tools(fields: Fields, ignored: Ignored, namespace: str = "") -> Iterator[Tool]:
    """Yield the tools that clients run, and record other tools as ignored. Raises OptionError."""
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
    """Return a tool in the form of this API. A function may be given in the form of another API."""
    if tool.has("function") or tool.has("input_schema") or not tool.has("type"):
        found = function_tool(tool)
        return tool if found is None else Fields({"type": "function", **found["function"]}, tool.where)
    return tool


def read_call(item: Fields, inner: InnerJson) -> dict[str, Any]:
    """Read a call and return it in Ollama's form. Raises OptionError."""
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
    """Return whether the client runs a tool. The provider may run shells and tool searches itself."""
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
