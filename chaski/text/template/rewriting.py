"""`Rewriting`: the changes to conversations that a template needs to accept them without losing a message.

Many templates refuse conversations that clients send: they require one system message, alternating roles,
ids of nine characters, or one call per turn. Others drop such messages. Probes find the changes that a
template needs once, not for each conversation. So all turns are changed alike, and a conversation that grows
keeps the text of its earlier turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from chaski.errors import TemplateError
from chaski.text.template import probes, tool_calls, turns
from chaski.text.template.meter import TemplateLimitError
from chaski.text.template.probes import Probe
from chaski.text.template.turns import Message

__all__ = ["Rewriting"]

_Render: TypeAlias = Callable[[Sequence[Message]], str]
_Change: TypeAlias = Callable[[Sequence[Message]], Sequence[Message]]

_LAST: tuple[_Change, Sequence[Probe]] = (turns.alternating, (probes.USERS,))


class Rewriting:
    """The changes that one template needs.

    probing: returns a function that renders conversations unchanged, or raises TemplateError
    call_tags: the texts around a call, for templates that do not write calls
    """

    def __init__(self, probing: Callable[[], _Render], call_tags: tuple[str, str] = ("", "")) -> None:
        self._probing = probing
        self._changes = _changes(call_tags)
        self._needed: list[_Change] | None = None

    def rewritten(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the conversation with the template's changes, or the conversation itself."""
        if all(change(messages) == messages for change, _ in self._changes):
            return messages
        if self._needed is None:
            self._needed = self._find_needed()
        return self._applied(self._needed, messages)

    def plainer(self, messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
        """Yield ever plainer forms of a rewritten but refused conversation, by changes of all kinds."""
        for change, _ in self._changes:
            if change is tool_calls.calls_as_metadata:  # no plainer form, but that of one family
                continue
            changed = turns.alternating(change(messages))
            if changed != messages:
                yield changed
            messages = changed

    def _find_needed(self) -> list[_Change]:
        """Return the changes without which a probe is refused or loses a word, and with which it does not."""
        render = self._probing()
        found: list[_Change] = []

        def takes(probe: Probe, changes: Sequence[_Change]) -> bool:
            try:
                return probe.is_shown(render(self._applied(changes, probe.messages)))
            except TemplateLimitError:
                raise
            except TemplateError:
                return False

        for change, needs in (_LAST, *self._changes[:-1]):
            if not all(takes(probe, found) for probe in needs) and all(
                takes(probe, [*found, change]) for probe in needs
            ):
                found.append(change)
        return found

    def _applied(self, changes: Sequence[_Change], messages: Sequence[Message]) -> Sequence[Message]:
        for change, _ in self._changes:
            if change in changes:
                messages = change(messages)
        return messages


def _changes(call_tags: tuple[str, str]) -> Sequence[tuple[_Change, Sequence[Probe]]]:
    """Return all changes in the order of their application, with the probes that need them."""
    opening, closing = call_tags
    return (
        (turns.developer_as_system, (probes.DEVELOPER,)),
        (turns.one_system, (probes.SYSTEMS,)),
        (turns.late_system_as_user, (probes.LATE_SYSTEM, probes.SYSTEM_BETWEEN)),
        (turns.system_as_user, (probes.SYSTEM,)),
        (turns.with_question, (probes.ONLY_SYSTEM,)),
        (tool_calls.ids_everywhere, (probes.CALL_WITHOUT_ID,)),
        (tool_calls.short_ids, (probes.CALL_WITH_LONG_ID,)),
        (tool_calls.naming_ids, (probes.CALL_WITH_LONG_ID,)),
        (tool_calls.arguments_as_text, (probes.CALL,)),
        (tool_calls.arguments_as_mapping, (probes.CALL_IN_BROKEN_JSON,)),
        (turns.words_with_calls, (probes.WORDS_AND_CALL,)),
        (tool_calls.text_apart, (probes.CALL_WITH_TEXT,)),
        (partial(tool_calls.text_apart, beside="thinking"), (probes.CALL_WITH_TEXT_AND_THOUGHT,)),
        (tool_calls.single_calls, (probes.CALLS,)),
        (tool_calls.calls_as_metadata, (probes.CALL_WITH_NAME,)),
        (turns.results_as_user, (probes.RESULT,)),
        (partial(tool_calls.calls_as_text, opening=opening, closing=closing), (probes.CALL_ITSELF,)),
        (turns.orphans_as_user, (probes.ORPHAN,)),
        (turns.results_with_comments, (probes.RESULT_WITH_COMMENT,)),
        _LAST,
    )
