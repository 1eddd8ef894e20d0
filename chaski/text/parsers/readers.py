"""Readers: the text of tool calls to `ToolCall`s, one for each way of writing them.

A reader takes the text between the tags of its format, and the tools of the request. It returns the calls, or
None where the text is no call; it never raises.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from chaski.text.parsers.pieces import ToolCall

Tools: TypeAlias = Sequence[Mapping[str, Any]]
Reader: TypeAlias = Callable[[str, Tools], list[ToolCall] | None]

_NAME_KEYS = ("name", "tool_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
# Cohere's way of saying that there is nothing to call.
_NO_CALL = {"directly_answer", "directly-answer"}
_FAULTS = (ValueError, SyntaxError, RecursionError, MemoryError)


def read_json(text: str, tools: Tools) -> list[ToolCall] | None:
    """JSON objects, or lists of them, one after the other: `{"name": …, "arguments": {…}}`."""
    try:
        values = list(_json_values(_unfenced(text)))
        calls = [_call(item) for value in values for item in (value if isinstance(value, list) else [value])]
    except _FAULTS:
        return None
    return [call for call in calls if call.name not in _NO_CALL] if values else None


def read_known_json(text: str, tools: Tools) -> list[ToolCall] | None:
    """JSON calls without a tag: only of tools that there are, because an answer may be JSON as well."""
    calls = read_json(text, tools)
    names = {_function(tool).get("name") for tool in tools}
    return calls if calls and all(call.name in names for call in calls) else None


def read_named_json(mark: str) -> Reader:
    """A name, the mark, then the arguments as JSON: Mistral's `name[ARGS]{…}`; DeepSeek's separator."""

    def read(text: str, tools: Tools) -> list[ToolCall] | None:
        name, found, arguments = text.partition(mark)
        if not found:
            return read_json(text, tools)
        name = name.partition("[CALL_ID]")[0].strip()
        if name == "function":  # DeepSeek R1 writes the type, then the name on a line of its own
            name, _, arguments = arguments.partition("\n")
        try:
            values = list(_json_values(_unfenced(arguments)))
            return [_made(name.strip(), values[0] if values else {})] if len(values) < 2 else None
        except _FAULTS:
            return None

    return read


def read_arguments(text: str) -> Mapping[str, Any] | None:
    """The arguments of a call whose name is known: a JSON object, or nothing."""
    try:
        return _made("any", _loads(text) if text.strip() else {}).arguments
    except _FAULTS:
        return None


def read_python(text: str, tools: Tools) -> list[ToolCall] | None:
    """Calls in Python's syntax with named literals: `f(a=1)`, one a line, or in a list."""
    source = text.strip()
    try:
        tree = ast.parse(source).body
        nodes = [node.value for node in tree if isinstance(node, ast.Expr)]
        if len(nodes) != len(tree) or not nodes:
            return None
        flat = [item for node in nodes for item in (node.elts if isinstance(node, ast.List) else [node])]
        return [_python_call(node) for node in flat]
    except _FAULTS:
        return None


def read_json_or_python(text: str, tools: Tools) -> list[ToolCall] | None:
    """Llama writes its own tools as `brave_search.call(query="…")` and all others as JSON."""
    calls = read_json(text, tools)
    return read_python(text, tools) if calls is None else calls


def read_parameters(text: str, tools: Tools) -> list[ToolCall] | None:
    """`<function=f><parameter=p>value</parameter></function>`, the values as text."""
    functions = _FUNCTION.findall(text)
    calls = [
        _typed_call(name, [(key, _line(value)) for key, value in _PARAMETER.findall(body)], tools)
        for name, body in functions
    ]
    return calls or None


def read_pairs(text: str, tools: Tools) -> list[ToolCall] | None:
    """GLM: the name, then `<arg_key>k</arg_key><arg_value>v</arg_value>` for each argument."""
    name = text.partition("<arg_key>")[0].strip()
    if not re.fullmatch(r"[\w.\-/]+", name):
        return None
    return [_typed_call(name, [(key, value.strip()) for key, value in _PAIR.findall(text)], tools)]


def read_braces(quote: str) -> Reader:
    """Gemma: `call:f{a:<escape>text<escape>,b:3}`, where `quote` stands on both sides of text."""

    def read(text: str, tools: Tools) -> list[ToolCall] | None:
        match = _BRACES.fullmatch(text.strip())
        if match is None:
            return None
        try:
            return [_made(match[1], _loads(_braces_to_json(match[2], quote)))]
        except _FAULTS:
            return None

    return read


@dataclass(slots=True)
class JsonScanner:
    """Finds where a JSON value ends, over any portions of text. `depth` counts open brackets."""

    depth: int = 0
    in_string: bool = False
    escaped: bool = False

    def feed(self, text: str, start: int = 0) -> int | None:
        """The position behind the value if it ends in this text."""
        position = start
        while position < len(text):
            if self.escaped:
                self.escaped = False
                position += 1
                continue
            match = (_IN_STRING if self.in_string else _OUTSIDE).search(text, position)
            if match is None:
                return None
            position = match.end()
            if self._take(match.group()):
                return position
        return None

    def _take(self, mark: str) -> bool:
        if mark == '"':
            self.in_string = not self.in_string
        elif mark == "\\":
            self.escaped = True
        else:
            self.depth += 1 if mark in "{[" else -1
        return not self.in_string and mark != '"' and self.depth <= 0


def is_in_string(text: str) -> bool:
    """Whether a JSON string is open at the end of the text."""
    return '"' in _STRING.sub("", text)


_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SEPARATOR = re.compile(r"[\s;,]*")
_FENCE = re.compile(r"\s*```(?:json)?\s*(.*?)\s*(?:```\s*)?", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_BRACES = re.compile(r"call:([\w.\-]+)\s*(\{.*\})", re.DOTALL)
_BARE = re.compile(r"([A-Za-z_][\w.\-]*)(\s*:)?")
_LITERALS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_DECODER = json.JSONDecoder(parse_constant=lambda name: _no_number(name))


def _json_values(text: str) -> Iterator[Any]:
    position = _after_blank(text, 0)
    while position < len(text):
        value, position = _DECODER.raw_decode(text, position)
        yield value
        position = _after_blank(text, position)


def _after_blank(text: str, position: int) -> int:
    match = _SEPARATOR.match(text, position)
    return position if match is None else match.end()


def _unfenced(text: str) -> str:
    match = _FENCE.fullmatch(text)
    return text if match is None else match[1]


def _loads(text: str) -> Any:
    return _DECODER.decode(text)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _call(value: Any) -> ToolCall:
    """A call from an object, under any of the names that models use for its parts."""
    if not isinstance(value, dict):
        raise ValueError("a call is an object")
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), "")
    arguments: Any = next((value[key] for key in _ARGUMENT_KEYS if key in value), None)
    return _made(name, arguments)


def _made(name: str, arguments: Any) -> ToolCall:
    """The call, its arguments decoded where they are JSON in a string; absent ones are an empty object."""
    if isinstance(arguments, str):
        arguments = _loads(arguments)
    if arguments is None:
        arguments = {}
    if not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name, and its arguments are an object")
    return ToolCall(name, arguments)


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("a call with named arguments is needed")
    name = ast.unparse(node.func)
    if not re.fullmatch(r"[\w.]+", name) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("a plain name is needed")
    arguments = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    return ToolCall(name.removesuffix(".call"), arguments)


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | str() as value):
            return value
        case ast.Constant(value=int() | float() as number) if abs(number) != float("inf"):
            return number
        case ast.Name(id=name) if name in _LITERALS:
            return _LITERALS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return -_literal(node.operand)
        case ast.List() | ast.Tuple():
            return [_literal(item) for item in node.elts]
        case ast.Dict():
            keys = [_literal(key) for key in node.keys if key is not None]
            return dict(zip(map(str, keys), map(_literal, node.values), strict=True))
        case _:
            raise ValueError("an argument is no literal")


def _braces_to_json(text: str, quote: str) -> str:
    """Text between quotes to JSON strings, bare words to keys or strings."""
    parts = text.split(quote)
    if len(parts) % 2 == 0:
        raise ValueError("a quote is open")
    outside = [_BARE.sub(_as_json, part) for part in parts[0::2]]
    inside = [json.dumps(part) for part in parts[1::2]]
    return "".join(out + quoted for out, quoted in zip(outside, [*inside, ""], strict=True))


def _as_json(match: re.Match[str]) -> str:
    word, colon = match.groups()
    return word if word in ("true", "false", "null") and not colon else json.dumps(word) + (colon or "")


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else {}


def _properties(name: str, tools: Tools) -> Mapping[str, Any]:
    """The schemas of the tool's parameters, by name."""
    for function in map(_function, tools):
        parameters = function.get("parameters")
        if function.get("name") == name and isinstance(parameters, Mapping):
            properties = parameters.get("properties")
            return properties if isinstance(properties, Mapping) else {}
    return {}


def _typed_call(name: str, values: Sequence[tuple[str, str]], tools: Tools) -> ToolCall:
    """A call whose arguments are text, typed by the tool's schema."""
    properties = _properties(name.strip(), tools)
    arguments = {key.strip(): _typed(value, properties.get(key.strip())) for key, value in values}
    return ToolCall(name.strip(), arguments)


def _line(value: str) -> str:
    """A value without the line breaks that set it apart from its tags."""
    return value.removeprefix("\n").removesuffix("\n")


def _typed(text: str, schema: Any) -> Any:
    """The text as the first of the schema's types that fits, text last; `null` is nothing in every schema."""
    types = _types(schema)
    lowered = text.strip().lower()
    if lowered == "null":
        return None
    if "boolean" in types and lowered in ("true", "false"):
        return lowered == "true"
    try:
        value = _loads(text.strip())
    except _FAULTS:
        return text
    fits = any(_fits(value, name) for name in types)
    return value if fits else text


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    choices = schema.get("anyOf")
    if isinstance(choices, list) and choices:
        return set().union(*map(_types, choices))
    names = schema.get("type")
    return {names} if isinstance(names, str) else set(names) if isinstance(names, list) else set()


def _fits(value: Any, type_name: str) -> bool:
    kinds: dict[str, tuple[type, ...]] = {
        "integer": (int,),
        "number": (int, float),
        "array": (list,),
        "object": (dict,),
    }
    return isinstance(value, kinds.get(type_name, ())) and not isinstance(value, bool)
