'''`Modelfile`: the recipe of a model, one instruction a line. Text in, text out.

    FROM llama3.2                          a model, or a path to a GGUF file
    PARAMETER temperature 0.5
    SYSTEM """A value of
    several lines."""
    # a comment

Instructions are read in any case. A value goes to the end of its line, or from quotes to the quotes that end
a line: one, or three where the text itself holds some. Errors are worded as Ollama's.
'''

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterator

from msgspec import Struct

from chaski.errors import ModelfileError
from chaski.store.parameters import DEPRECATED, LISTS, Parameter, parse_parameter

__all__ = ["Instruction", "Modelfile"]

_log = logging.getLogger(__name__)

_COMMANDS = (
    "from",
    "license",
    "template",
    "system",
    "adapter",
    "draft",
    "renderer",
    "parser",
    "parameter",
    "message",
    "requires",
)
_ROLES = ("system", "user", "assistant")
_KEYED = ("parameter", "message")
_VERSION = re.compile(r"v?\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_QUOTES = ('"""', '"')


class Instruction(Struct, frozen=True):
    """One instruction. key: the parameter's name, or the role of a message; of others empty."""

    command: str
    value: str
    key: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.command.upper(), self.key, _quoted(self.value))))


class Modelfile(Struct, frozen=True):
    """The instructions, in order. `str` gives the text of the file."""

    instructions: tuple[Instruction, ...]

    @classmethod
    def parse(cls, source: bytes | str) -> Modelfile:
        """Read a file. Raises ModelfileError."""
        text = source if isinstance(source, str) else _decoded(source)
        found = cls(tuple(_instructions(text.replace("\r\n", "\n").split("\n"))))
        if not found.values("from"):
            raise ModelfileError("no FROM line")
        return found

    def values(self, command: str) -> list[str]:
        """The values of all instructions of a kind."""
        return [each.value for each in self.instructions if each.command == command]

    def last(self, command: str) -> str | None:
        """The value that counts of an instruction that may come once."""
        values = self.values(command)
        return values[-1] if values else None

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters with their types; those of `LISTS` are lists of all values that are given."""
        pairs = [(name, parse_parameter(name, text)) for name, text in self._pairs("parameter")]
        found: dict[str, Parameter] = dict(pairs)
        for name in LISTS & found.keys():
            found[name] = [value for key, value in pairs if key == name and not isinstance(value, list)]
        return found

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns that conversations begin with."""
        return [{"role": role, "content": text} for role, text in self._pairs("message")]

    def __str__(self) -> str:
        return "".join(f"{instruction}\n" for instruction in self.instructions)

    def _pairs(self, command: str) -> Iterator[tuple[str, str]]:
        return ((each.key, each.value) for each in self.instructions if each.command == command)


def _decoded(data: bytes) -> str:
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ModelfileError(f"the Modelfile is no text in {encoding}: {error.reason}") from None


def _instructions(lines: list[str]) -> Iterator[Instruction]:
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            instruction = _instruction(line.lstrip(), numbered)
        except ModelfileError as error:
            raise ModelfileError(f"(line {number}): {error}") from None
        if instruction.command == "parameter" and instruction.key in DEPRECATED:
            _log.warning("parameter %s is deprecated and does nothing", instruction.key)
        else:
            yield instruction


def _instruction(line: str, following: Iterator[tuple[int, str]]) -> Instruction:
    command, rest = _split(line)
    command, key = command.lower(), ""
    if command not in _COMMANDS:
        names = ", ".join(f'"{name}"' for name in _COMMANDS[:-1])
        raise ModelfileError(f'command must be one of {names}, or "{_COMMANDS[-1]}"')
    if command in _KEYED:
        key, rest = _split(rest)
    instruction = Instruction(command, _value(rest, following), key)
    _check(instruction)
    return instruction


def _check(instruction: Instruction) -> None:
    if instruction.command == "message" and instruction.key not in _ROLES:
        raise ModelfileError('message role must be one of "system", "user", or "assistant"')
    if instruction.command == "parameter" and instruction.key not in DEPRECATED:
        parse_parameter(instruction.key, instruction.value)
    if instruction.command == "requires" and not _VERSION.fullmatch(instruction.value):
        raise ModelfileError("requires must be a version such as 0.14.0")
    if instruction.command in ("from", "adapter", "draft") and not instruction.value:
        raise ModelfileError(f"{instruction.command.upper()} needs a value")


def _split(line: str) -> tuple[str, str]:
    """The first word, and what follows it."""
    word, *rest = line.split(None, 1) or [""]
    return word, rest[0] if rest else ""


def _value(text: str, following: Iterator[tuple[int, str]]) -> str:
    """The value that begins with `text`; while its quotes are open it goes on with the next line."""
    while (value := _unquoted(text.strip())) is None:
        try:
            text += "\n" + next(following)[1]
        except StopIteration:
            raise ModelfileError("unexpected EOF") from None
    return value


def _unquoted(text: str) -> str | None:
    """The text between quotes, or without any; None while they are open."""
    for quote in _QUOTES:
        if text.startswith(quote):
            is_closed = len(text) >= 2 * len(quote) and text.endswith(quote)
            return text[len(quote) : -len(quote)] if is_closed else None
    return text


def _quoted(text: str) -> str:
    """The text as a value that is read as it, bare if that will do. Raises ModelfileError if none is."""
    if text and text == text.strip() and "\n" not in text and not text.startswith('"'):
        return text
    for quote in _QUOTES:
        lines = iter(enumerate(f"{quote}{text}{quote}".split("\n")))
        try:
            if _value(next(lines)[1], lines) == text and next(lines, None) is None:
                return f"{quote}{text}{quote}"
        except ModelfileError:
            continue
    raise ModelfileError(f"no quotes can hold the text {text!r:.60}")
