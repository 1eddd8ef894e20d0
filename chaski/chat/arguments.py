"""Checks of the types of prompts and conversations, made before anything else looks at them."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from json import dumps
from pathlib import Path
from typing import Any

from chaski.errors import OptionError
from chaski.suggestions import Foreign, suggestion
from chaski.text.parsers.json_text import load_json

__all__ = ["check_roles", "path_text", "read_arguments", "string_list", "text_list", "token_ids"]

_ROLES = ("system", "user", "assistant", "tool", "developer")
_FOREIGN_ROLES: dict[str, tuple[Foreign, ...]] = {
    "human": (Foreign(("user",), "LangChain"),),
    "ai": (Foreign(("assistant",), "LangChain"),),
    "model": (Foreign(("assistant",), "Gemini's API"),),
    "bot": (Foreign(("assistant",), "other programs"),),
    "function": (Foreign(("tool",), "OpenAI's API"),),
}


def token_ids(
    prompt: object, what: str = "the prompt", form: str = "a text, or a list of token ids"
) -> list[int]:
    """Return a prompt of ids as a list. Raises OptionError for anything but whole numbers."""
    if isinstance(prompt, Iterable) and not isinstance(prompt, str | bytes | Mapping):
        try:
            return [operator.index(token) for token in prompt]
        except TypeError:
            pass
    raise OptionError(f"{what} is {prompt!r:.80}; it must be {form}")


def text_list(texts: Any) -> list[Any]:
    """Return the texts to embed as a list; a single text may come alone. Raises OptionError."""
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        raise OptionError(f"the texts are {texts!r:.80}; they must be a text, or a list of texts or ids")
    return list(texts)


def path_text(path: object, what: str) -> str:
    """Return a path as an absolute text. Raises OptionError for anything but a text or a path."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise OptionError(f"{what} is {path!r:.80}; it must be a path")
    return str(Path(path).absolute())


def string_list(texts: object, what: str) -> list[str]:
    """Return a list of texts. Raises OptionError for anything else, a single text included."""
    if isinstance(texts, Iterable) and not isinstance(texts, str | bytes | Mapping):
        found = list(texts)
        if found and all(isinstance(text, str) for text in found):
            return found
    raise OptionError(f"the {what} are {texts!r:.80}; they must be a list of texts, and at least one")


def read_arguments(arguments: object, load: Callable[[str], Any] = load_json) -> Mapping[str, Any] | str:
    """Return the arguments of a call: a mapping, made of JSON where they are text.

    load: reads JSON; raises ValueError or RecursionError for invalid text.

    Text that is not the JSON of an object is a mistake of the model, and stays text.
    """
    if isinstance(arguments, Mapping):
        return arguments
    if not isinstance(arguments, str):
        return {} if arguments is None else dumps(arguments, ensure_ascii=False)
    if not arguments.strip():
        return {}
    try:
        found = load(arguments)
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def check_roles(messages: Iterable[Mapping[str, object]], knows_role: Callable[[str], bool]) -> None:
    """Raise OptionError for a role that is neither usual nor known to the model's template."""
    for number, message in enumerate(messages):
        role = str(message["role"])
        if role not in _ROLES and not knows_role(role):
            advice = suggestion(role, _ROLES, _FOREIGN_ROLES) or f"known: {', '.join(_ROLES)}"
            raise OptionError(f"message {number} has the unknown role {role!r:.40}; {advice}")
