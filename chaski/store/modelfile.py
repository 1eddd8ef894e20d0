'''`Modelfile`: parses and writes the recipe of a model, one instruction per line.

    FROM llama3.2                          a model, or a path to a GGUF file
    PARAMETER temperature 0.5
    SYSTEM """A value of
    several lines."""
    # a comment

Instructions are case-insensitive. A value extends to the end of its line, or from opening quotes to closing
quotes at the end of a line: single double quotes, or triple ones if the text contains quotes. Errors use
Ollama's wording.'''

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
    """One instruction. `key`: the name of a parameter or the role of a message, else empty."""

    command: str
    value: str
    key: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.command.upper(), self.key, _quoted(self.value))))


class Modelfile(Struct, frozen=True):
    """The instructions, in order. `str` returns the text of the file."""

    instructions: tuple[Instruction, ...]

    @classmethod
    def parse(cls, source: bytes | str) -> Modelfile:
        """Parse a Modelfile. Raises ModelfileError."""
        text = source if isinstance(source, str) else _decoded(source)
        found = cls(tuple(_instructions(text.replace("\r\n", "\n").split("\n"))))
        if not found.values("from"):
            raise ModelfileError("no FROM line")
        return found

    def values(self, command: str) -> list[str]:
        """Return the values of all instructions of a kind."""
        return [each.value for each in self.instructions if each.command == command]

    def last(self, command: str) -> str | None:
        """Return the effective value of a single-value instruction: the last one."""
        values = self.values(command)
        return values[-1] if values else None

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Return the typed parameters. Parameters in `LISTS` are lists of all given values."""
        pairs = [(name, parse_parameter(name, text)) for name, text in self._pairs("parameter")]
        found: dict[str, Parameter] = dict(pairs)
        for name in LISTS & found.keys():
            found[name] = [value for key, value in pairs if key == name and not isinstance(value, list)]
        return found

    @property
    def messages(self) -> list[dict[str, str]]:
        """Return the initial turns of every conversation."""
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
    """Split a line into its first word and the rest."""
    word, *rest = line.split(None, 1) or [""]
    return word, rest[0] if rest else ""


def _value(text: str, following: Iterator[tuple[int, str]]) -> str:
    """Return the value that starts with `text`, adding the next lines while its quotes are open."""
    while (value := _unquoted(text.strip())) is None:
        try:
            text += "\n" + next(following)[1]
        except StopIteration:
            raise ModelfileError("unexpected EOF") from None
    return value


def _unquoted(text: str) -> str | None:
    """Return the text without its quotes, or None while they are open."""
    for quote in _QUOTES:
        if text.startswith(quote):
            is_closed = len(text) >= 2 * len(quote) and text.endswith(quote)
            return text[len(quote) : -len(quote)] if is_closed else None
    return text


def _quoted(text: str) -> str:
    """Quote a text if needed, so that it parses unchanged. Raises ModelfileError if that is impossible."""
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
