"""The variables of templates that set whether a model thinks, and how much: families have several names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from chaski.errors import TemplateError

if TYPE_CHECKING:
    from chaski.text.template.chat import ChatTemplate
    from chaski.text.template.plain import PlainTemplate

__all__ = ["silenced", "thinking_variables"]


Message: TypeAlias = Mapping[str, Any]


class _Switch(Struct, frozen=True):
    """A variable with its values for thinking and for not thinking."""

    name: str
    on: bool | str
    off: bool | str


# Most templates read one of the first two, which are always set.
_USUAL = ("enable_thinking", "thinking")
_SWITCHES = (
    _Switch("reasoning", True, False),  # Cohere
    _Switch("thinking_mode", "enabled", "disabled"),  # MiniMax M3
    _Switch("thinking_mode", "on", "off"),  # Baichuan M2
    _Switch("thinking_option", "on", "off"),  # Ling 3
    _Switch("reasoning_effort", "high", "no_think"),  # Hunyuan 3
    _Switch("reasoning_strength", "high", "none"),  # Muse
)
# A word in a message with which some templates switch thinking off, and which they do not show.
_WORD = "/no_think"
_LEVELS = ("reasoning_effort", "thinking_effort", "reasoning_strength")
# The levels to try where a template refuses one, the nearest first.
_NEAREST: Mapping[str, tuple[str, ...]] = {
    "low": ("low", "medium", "high"),
    "medium": ("medium", "high", "low"),
    "high": ("high", "max", "medium"),
    "max": ("max", "high"),
}


@lru_cache(256)
def thinking_variables(
    template: ChatTemplate | PlainTemplate, source: str, think: bool | str
) -> Mapping[str, bool | str]:
    """Return the variables that tell a template whether to think, and how much if `think` is a level."""
    found: dict[str, bool | str] = dict.fromkeys(_USUAL, bool(think))
    if isinstance(think, str):
        found["reasoning_effort"] = think
    names = template.variables
    for switch in _SWITCHES:
        if switch.name in names and _switches(template, source, switch):
            # Some templates think unless they are told not to, as much as they like.
            if not think or _written(template, {}) == _written(template, {switch.name: switch.off}):
                found.setdefault(switch.name, switch.on if think else switch.off)
            break
    if isinstance(think, str):
        found.update({name: _level(template, name, think) for name in _LEVELS if name in names})
    return found


def silenced(
    template: ChatTemplate | PlainTemplate, source: str, messages: Sequence[Message]
) -> Sequence[Message]:
    """Return a conversation that asks not to think, if the template takes only a word for it.

    Nemotron Nano 2 has such a template.
    """
    last = next((i for i in reversed(range(len(messages))) if messages[i].get("role") == "user"), None)
    if last is None or not isinstance(messages[last].get("content"), str) or not _obeys(template, source):
        return messages
    asked = {**messages[last], "content": f"{messages[last]['content']} {_WORD}"}
    return [*messages[:last], asked, *messages[last + 1 :]]


@lru_cache(64)
def _obeys(template: ChatTemplate | PlainTemplate, source: str) -> bool:
    if _WORD not in source:
        return False
    usual = {_written(template, dict.fromkeys(_USUAL, on)) for on in (True, False)}
    told = _written(template, {}, f"? {_WORD}")
    return len(usual) == 1 and told is not None and _WORD not in told and told not in usual


def _switches(template: ChatTemplate | PlainTemplate, source: str, switch: _Switch) -> bool:
    """Return whether the usual variables change nothing in a template, and the switch does."""
    if isinstance(switch.off, str) and switch.off not in source:
        return False
    usual = {_written(template, dict.fromkeys(_USUAL, on)) for on in (True, False)}
    texts = {_written(template, {switch.name: value}) for value in (switch.on, switch.off)}
    return len(usual) == 1 and len(texts) == 2 and None not in texts


def _level(template: ChatTemplate | PlainTemplate, name: str, level: str) -> str:
    """Return the level that is nearest to another one among those that the template accepts."""
    tried = _NEAREST.get(level, (level,))
    return next((each for each in tried if _written(template, {name: each}) is not None), level)


def _written(
    template: ChatTemplate | PlainTemplate, variables: Mapping[str, Any], question: str = "?"
) -> str | None:
    """Return the text of a question; None if the template refuses the variables."""
    try:
        return template.probing()([{"role": "user", "content": question}], None, **variables)
    except TemplateError:
        return None
