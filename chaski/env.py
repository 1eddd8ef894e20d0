"""The environment variables that chaski reads: one table, parsed in one place.

`Environment.read()` parses all of them and refuses a bad value. Names that Ollama knows keep its name and
meaning. Arguments and options always win over the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from chaski.errors import OptionError

__all__ = ["Environment", "Variable", "variables"]


@dataclass(frozen=True, slots=True)
class Variable:
    """A row of the table. `default` is text for people; `parse` raises ValueError with what is allowed."""

    name: str
    kind: str
    default: str
    meaning: str
    parse: Callable[[str], Any]


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("a whole number above 0")
    return number


def _word(text: str) -> str:
    return text.lower()


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise ValueError("1 or 0, true or false")
    return words[text.lower()]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip().lower() for word in text.split(",") if word.strip())


def _variable(
    name: str, kind: str, meaning: str, parse: Callable[[str], Any], default: Any = None, unset: str = ""
) -> Any:
    row = Variable(name, kind, unset or str(default), meaning, parse)
    return field(default=default, metadata={"variable": row})


@dataclass(frozen=True, slots=True)
class Environment:
    """The parsed values; the default where a variable is not set, or empty."""

    context: int | None = _variable(
        "OLLAMA_CONTEXT_LENGTH",
        "number",
        "tokens that one sequence may hold, its prompt included; never more than the model was made for",
        _positive,
        unset="the model's own, at most 4096",
    )
    parallel: int = _variable(
        "OLLAMA_NUM_PARALLEL", "number", "sequences that are computed at the same time", _positive, default=1
    )
    kv_type: str | None = _variable(
        "OLLAMA_KV_CACHE_TYPE",
        "type",
        "element type of keys and values: f32, f16, bf16, q8_0 or q4_0, or two of them as keys:values",
        _word,
        unset="f16; f32 for a model of f32 weights",
    )
    multi_user: bool | None = _variable(
        "OLLAMA_MULTIUSER_CACHE",
        "switch",
        "on: a prompt never drops what another one has cached while a slot is free; off: it goes on where it "
        "shares most",
        _switch,
        unset="what loses less",
    )
    flash_attention: bool = _variable(
        "OLLAMA_FLASH_ATTENTION",
        "switch",
        "off: attention computes all scores of a token before it weighs values; not with q8_0 and q4_0",
        _switch,
        default=True,
        unset="on",
    )
    threads: int | None = _variable(
        "CHASKI_THREADS", "number", "cores that a model computes on", _positive, unset="the physical cores"
    )
    isa: str = _variable(
        "CHASKI_ISA",
        "name",
        "instruction set of the kernels, one of those that `chaski info` lists",
        _word,
        default="auto",
        unset="the fastest",
    )

    models: str | None = _variable(
        "OLLAMA_MODELS",
        "folder",
        "the model store: manifests and blobs, as Ollama lays them out",
        str,
        unset="~/.ollama/models",
    )
    keeps_unused: bool = _variable(
        "OLLAMA_NOPRUNE",
        "switch",
        "keep blobs that a pull, a create or a removal leaves unused",
        _switch,
        default=False,
        unset="off",
    )
    private_registries: tuple[str, ...] = _variable(
        "CHASKI_PRIVATE_REGISTRIES",
        "hosts",
        "registry hosts, with commas between them, that may have private or loopback addresses",
        _words,
        default=(),
        unset="none",
    )

    @classmethod
    def read(cls, values: Mapping[str, str] = os.environ) -> Environment:
        """Parse every variable of the table. Raises OptionError that says what a variable may be."""
        found = {}
        for attribute in fields(cls):
            variable: Variable = attribute.metadata["variable"]
            # Service files and .env files often leave the quotes in the value.
            text = values.get(variable.name, "").strip().strip("\"'").strip()
            if text:
                found[attribute.name] = _parse(variable, text)
        return cls(**found)


def variables() -> list[Variable]:
    """The table, in the order in which it is written above."""
    return [attribute.metadata["variable"] for attribute in fields(Environment)]


def _parse(variable: Variable, text: str) -> Any:
    try:
        return variable.parse(text)
    except ValueError as allowed:
        raise OptionError(f"environment variable {variable.name} = {text!r} must be {allowed}") from None
