"""Keyword arguments of Python calls: values of NumPy and of type libraries become plain ones.

Errors for unknown names propose the right ones, and say which call takes a name that this one does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict, cast

from chaski.chat.options import GenerateOptions
from chaski.chat.type_schemas import type_schema
from chaski.errors import OptionError
from chaski.options import is_integer
from chaski.runner.adapters.adapter_calls import AdapterFiles
from chaski.suggestions import equivalent, suggestion

__all__ = ["LoadOptions", "answer_options", "check_load_options", "load_options", "plain"]


class LoadOptions(TypedDict, total=False):
    """The keyword arguments of `chaski.load` without `progress`, and the engine: native or llama.cpp."""

    projector: str | None
    threads: int | None
    context: int | None
    needed_context: int | None
    parallel: int | None
    most_parallel: int
    claimed_memory: int
    num_batch: int
    kv_type: str | None
    flash_attention: bool | None
    prompt_cache: bool | str
    backend: str | None
    engine: str | None
    draft: str | None
    adapters: AdapterFiles | None
    num_gpu: int | None
    main_gpu: int | None
    tensor_split: Sequence[float] | None
    n_cpu_moe: int | None
    cpu_moe: bool | None
    override_tensor: str | Sequence[str] | None
    gpu_experts: int | None
    expert_memory: int | None


def _are_words(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)


_ANSWER = GenerateOptions.__annotations__.keys()
_LOAD = LoadOptions.__annotations__.keys() | {"progress"}
_TYPES: tuple[tuple[tuple[str, ...], Callable[[object], bool], str], ...] = (
    (("projector", "draft"), lambda value: isinstance(value, str | os.PathLike), "a path or a name"),
    (
        ("num_gpu", "main_gpu", "n_cpu_moe", "gpu_experts", "expert_memory"),
        is_integer,
        "a whole number",
    ),
    (("kv_type",), lambda value: isinstance(value, str), "the name of a type"),
    (("flash_attention", "cpu_moe"), lambda value: isinstance(value, bool), "True or False"),
    (("tensor_split",), lambda value: isinstance(value, list | tuple), "a list of numbers, one for each GPU"),
    (
        ("override_tensor",),
        lambda value: isinstance(value, str) or _are_words(value),
        "a text or a list of texts",
    ),
)
"""Options whose types nothing else checks."""
_OTHERWISE: Mapping[str, str] = {
    "stream": "stream and stream_chat return an answer in pieces",
    "n": "generate_many and chat_many take n",
    "best_of": "generate_many and chat_many take n",
    "system": 'begin the messages with {"role": "system", "content": "..."}',
    "messages": "chat takes the messages as its first argument",
    "tools": "chat takes tools",
    "think": "chat takes think",
    "echo": "put the prompt before the answer's text",
}
"""Names that stand for another way to call."""


def answer_options(options: Mapping[str, Any]) -> GenerateOptions:
    """Return the options of an answer as plain values. Raises OptionError for an unknown name."""
    _check_names(options, _ANSWER, _LOAD, "chaski.load")
    found = {name: plain(value) for name, value in options.items()}
    if "format" in found:
        found["format"] = _schema(options["format"], found["format"])
    return cast(GenerateOptions, found)


def check_load_options(options: Mapping[str, object], known: Iterable[str] = _LOAD) -> None:
    """Raise OptionError for a name that loading does not know."""
    _check_names(options, known, _ANSWER, "generate and chat")


def load_options(**options: Any) -> dict[str, Any]:
    """Return options of loading as plain values. Raises OptionError for a value of another type."""
    found = {name: plain(value) for name, value in options.items()}
    for names, fits, wanted in _TYPES:
        for name in names:
            if (value := found.get(name)) is not None and not fits(value):
                raise OptionError(f"{name} = {value!r:.80} must be {wanted}")
    return found


def plain(value: Any) -> Any:
    """Return a value with Python's own numbers, texts and lists instead of NumPy's, at any depth."""
    with suppress(RecursionError):  # the check of the option reports a value that is too deep
        if isinstance(value, Mapping):
            return {plain(key): plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        if type(value) is tuple:
            return tuple(plain(item) for item in value)
        if not isinstance(value, type) and callable(tolist := getattr(value, "tolist", None)):
            return tolist()
    return value


def _check_names(options: Iterable[str], known: Iterable[str], others: Iterable[str], where: str) -> None:
    names = set(known)
    unknown = min((name for name in options if name not in names), default=None)
    if unknown is None:
        return
    raise OptionError(f"option {unknown!r} is unknown: {_advice(unknown, names, others, where)}")


def _advice(unknown: str, names: set[str], others: Iterable[str], where: str) -> str:
    if equivalent(unknown, names) is None:
        if way := _same_name(unknown, _OTHERWISE):
            return _OTHERWISE[way]
        if other := _same_name(unknown, others):
            return f"it is {other} of {where}"
    return suggestion(unknown, names) or f"known: {', '.join(sorted(names))}"


def _same_name(name: str, known: Iterable[str]) -> str | None:
    """Return the name under which another call takes an option."""
    every = set(known)
    found = equivalent(name, every)
    return name if name in every else None if found is None else found[0]


def _schema(given: Any, found: Any) -> Any:
    """Return the JSON schema of a type that is given as the format; other formats are returned as `found`."""
    try:
        schema = type_schema(given)
    except (TypeError, NameError) as error:
        raise OptionError(
            f"option format is {given!r:.80}, whose JSON schema is not known: {error!s:.120}; give a schema, "
            "a Pydantic model, a dataclass or a TypedDict"
        ) from None
    return found if schema is None else schema
