"""Readers: the text of tool calls to `FoundCall`s, one for each way of writing them.

A reader takes the text between the tags of its format, and the tools of the request. It returns the calls, or
None where the text is no call; it never raises.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from chaski.text.parsers.json_text import json_values, load_json, readable, unfenced
from chaski.text.parsers.pieces import FoundCall
from chaski.text.parsers.schema import Tools, function_of, properties_of, typed

CallReader: TypeAlias = Callable[[str, Tools], list[FoundCall] | None]

_NAME_KEYS = ("name", "tool_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_NO_CALL = {"directly_answer", "directly-answer"}
_FAULTS = (ValueError, SyntaxError, RecursionError, MemoryError)


def read_json(text: str, tools: Tools) -> list[FoundCall] | None:
    """JSON objects, or lists of them, one after the other: `{"name": …, "arguments": {…}}`."""
    try:
        values = list(json_values(unfenced(text)))
        calls = [_call(item) for value in values for item in (value if isinstance(value, list) else [value])]
    except _FAULTS:
        return None
    return calls if values else None


def read_actions(text: str, tools: Tools) -> list[FoundCall] | None:
    """Command R: a list of calls, one of which may say that there is nothing to call."""
    calls = read_json(text, tools)
    return None if calls is None else [call for call in calls if call.name not in _NO_CALL]


def read_known_json(text: str, tools: Tools) -> list[FoundCall] | None:
    """JSON calls without a tag: only of tools that there are, because an answer may be JSON as well."""
    calls = read_json(text, tools)
    names = {function_of(tool).get("name") for tool in tools}
    return calls if calls and all(call.name in names for call in calls) else None


def read_named_json(mark: str) -> CallReader:
    """A name, the mark, then the arguments as JSON: Mistral's `name[ARGS]{…}`; DeepSeek's separator."""

    def read(text: str, tools: Tools) -> list[FoundCall] | None:
        name, found, arguments = text.partition(mark)
        if not found:
            return read_json(text, tools)
        name = name.partition("[CALL_ID]")[0].strip()
        if name == "function" and (own := _NAME.match(arguments)):
            # DeepSeek R1 writes the type, then the name in front of the arguments.
            name, arguments = own[1], arguments[own.end() :]
        try:
            values = list(json_values(unfenced(arguments)))
            return [_made(name.strip(), values[0] if values else {})] if len(values) < 2 else None
        except _FAULTS:
            return None

    return read


def read_arguments(text: str) -> Mapping[str, Any] | None:
    """The arguments of a call whose name is known: a JSON object, or nothing."""
    try:
        return _made("any", load_json(text) if text.strip() else {}).arguments
    except _FAULTS:
        return None


def read_python(text: str, tools: Tools) -> list[FoundCall] | None:
    """Calls in Python's syntax with named literals: `f(a=1)`, one a line, or in a list."""
    source = text.strip()
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes such as \\d
            tree = ast.parse(source).body
        nodes = [node.value for node in tree if isinstance(node, ast.Expr)]
        if len(nodes) != len(tree) or not nodes:
            return None
        flat = [item for node in nodes for item in (node.elts if isinstance(node, ast.List) else [node])]
        return [_python_call(node) for node in flat]
    except _FAULTS:
        return None


def read_json_or_python(text: str, tools: Tools) -> list[FoundCall] | None:
    """Llama writes its own tools as `brave_search.call(query="…")` and all others as JSON."""
    calls = read_json(text, tools)
    return read_python(text, tools) if calls is None else calls


def read_parameters(text: str, tools: Tools) -> list[FoundCall] | None:
    """`<function=f><parameter=p>value</parameter></function>`, the values as text."""
    functions = _FUNCTION.findall(text)
    calls = [
        _typed_call(name, [(key, _line(value)) for key, value in _PARAMETER.findall(body)], tools)
        for name, body in functions
    ]
    return calls or None


def read_pairs(text: str, tools: Tools) -> list[FoundCall] | None:
    """GLM: the name, then `<arg_key>k</arg_key><arg_value>v</arg_value>` for each argument."""
    name = text.partition("<arg_key>")[0].strip()
    if not re.fullmatch(r"[\w.\-/]+", name):
        return None
    return [_typed_call(name, [(key, value.strip()) for key, value in _PAIR.findall(text)], tools)]


def read_pairs_or_json(text: str, tools: Tools) -> list[FoundCall] | None:
    """Laguna: as GLM, or as JSON with the name in it, or with the name on a line before its arguments."""
    name, _, arguments = text.strip().partition("\n")
    if text.lstrip().startswith("{"):
        return read_json(text, tools)
    if arguments.lstrip().startswith("{"):
        found = read_arguments(arguments)
        return None if found is None or not name.strip() else [FoundCall(name.strip(), found)]
    return read_pairs(text, tools)


def read_braces(quote: str) -> CallReader:
    """Gemma: `call:f{a:<escape>text<escape>,b:3}`, where `quote` stands on both sides of text."""

    def read(text: str, tools: Tools) -> list[FoundCall] | None:
        match = _BRACES.fullmatch(text.strip())
        if match is None:
            return None
        try:
            return [_made(match[1], load_json(_braces_to_json(match[2], quote)))]
        except _FAULTS:
            return None

    return read


_NAME = re.compile(r"\s*([\w.\-]+)\s*")
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_PAIR = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_BRACES = re.compile(r"call:([\w.\-]+)\s*(\{.*\})", re.DOTALL)
_BARE = re.compile(r"([A-Za-z_][\w.\-]*)(\s*:)?")
_LITERALS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


def _call(value: Any) -> FoundCall:
    """A call from an object, under any of the names that models use for its parts."""
    if not isinstance(value, dict):
        raise ValueError("a call is an object")
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), "")
    arguments: Any = next((value[key] for key in _ARGUMENT_KEYS if key in value), None)
    return _made(name, arguments)


def _made(name: str, arguments: Any) -> FoundCall:
    """The call, its arguments decoded where they are JSON in a string; absent ones are an empty object."""
    if isinstance(arguments, str):
        arguments = load_json(arguments)
    if arguments is None:
        arguments = {}
    if not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name, and its arguments are an object")
    return FoundCall(name, arguments)


def _python_call(node: ast.expr) -> FoundCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("a call with named arguments is needed")
    name = ast.unparse(node.func)
    if not re.fullmatch(r"[\w.]+", name) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("a plain name is needed")
    arguments = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    return FoundCall(name.removesuffix(".call"), arguments)


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() as text):
            return readable(text)
        case ast.Constant(value=None | bool() as value):
            return value
        case ast.Constant(value=int() | float() as number) if abs(number) <= sys.float_info.max:
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


def _typed_call(name: str, values: Sequence[tuple[str, str]], tools: Tools) -> FoundCall:
    """A call whose arguments are text, typed by the tool's schema."""
    properties = properties_of(name.strip(), tools)
    arguments = {key.strip(): typed(value, properties.get(key.strip())) for key, value in values}
    return FoundCall(name.strip(), arguments)


def _line(value: str) -> str:
    """A value without the line breaks that set it apart from its tags."""
    return value.removeprefix("\n").removesuffix("\n")
