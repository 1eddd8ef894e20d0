"""`GoTemplate`: a template of Ollama, compiled once and rendered within limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaski.errors import TemplateError
from chaski.text.template.go import syntax
from chaski.text.template.go.conversation import (
    TemplateMessage,
    as_value,
    collate,
    read_messages,
    read_tools,
    system_text,
)
from chaski.text.template.go.evaluator import evaluate
from chaski.text.template.go.functions import FUNCTIONS
from chaski.text.template.go.parser import MAIN, parse
from chaski.text.template.go.tree import cut_after, names, text_around
from chaski.text.template.go.values import Map, Value, from_text
from chaski.text.template.meter import RenderLimits, check_source, current_meter, deadline_of, guarded
from chaski.text.template.probes import Rendering

_RESPONSE = syntax.Action(syntax.Pipe(1, (), False, (syntax.Command((syntax.Field(("Response",)),)),)))


class GoTemplate:
    """A template in Go's language with Ollama's data. Safe to use from several threads.

    It sees only plain data, reads no files and changes nothing. Every error in it is a `TemplateError` with
    the line, and so is exceeding one of the `RenderLimits`. Go's `text/template` and Ollama's `template`
    package define its behaviour.
    """

    def __init__(self, source: str, limits: RenderLimits | None = None) -> None:
        """Compile the template. The response is appended if it uses neither messages nor the response."""
        self._limits = limits or RenderLimits()
        check_source(source)
        with guarded(self._limits):
            self._templates = dict(parse(from_text(source), FUNCTIONS))
            self.names = names(self._templates)
        if not self.names & {"messages", "response"}:
            self._templates[MAIN] += (_RESPONSE,)

    names: frozenset[str]
    """Names of the fields and variables that the template uses, in lower case; they show its capabilities."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        think: bool | str | None = None,
    ) -> str:
        """Return the text of the conversation. The template decides where an answer begins.

        `messages` and `tools` are those of Ollama's API. `think` is the value in the request: a boolean, a
        level, or None.
        """
        if not add_generation_prompt:
            raise TemplateError(
                "a Go template decides where an answer begins, so add_generation_prompt must be true"
            )
        return self._rendered(messages, tools, think)

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        think: bool | str | None,
        deadline: float | None = None,
    ) -> str:
        flags = _flags(think)
        with guarded(self._limits, deadline):
            read = read_messages(messages)
            collated = collate(read)
            if "messages" not in self.names:
                return self._render_turns(collated, flags)
            return self._evaluate(
                self._templates[MAIN],
                System=system_text(read),
                Messages=as_value(collated),
                Tools=read_tools(tools),
                Response="",
                **flags,
            )

    def render_prompt(
        self, prompt: str, system: str = "", suffix: str = "", think: bool | str | None = None
    ) -> str:
        """Return the text for one prompt, or for filling in text between the prompt and a `suffix`.

        With a suffix only the prompt and the suffix are shown, so `system` is not used.
        """
        if not suffix:
            messages = [{"role": "system", "content": system}] if system else []
            return self.render([*messages, {"role": "user", "content": prompt}], think=think)
        if "suffix" not in self.names:
            raise TemplateError(
                "this model's template has no .Suffix, so it cannot fill in between two texts"
            )
        with guarded(self._limits):
            return self._evaluate(
                self._templates[MAIN],
                Prompt=from_text(prompt),
                Suffix=from_text(suffix),
                Response="",
                **_flags(think),
            )

    def probing(self) -> Rendering:
        """Return a function that renders probes; all its calls share the time limit of one rendering."""
        deadline = deadline_of(self._limits)

        def render(
            messages: Sequence[Mapping[str, Any]],
            tools: Sequence[Mapping[str, Any]] | None,
            /,
            **variables: object,
        ) -> str:
            think = variables.get("think")
            return self._rendered(messages, tools, think if isinstance(think, bool | str) else None, deadline)

        return render

    def thinking_tags(self) -> tuple[str, str] | None:
        """Return the texts right before and right after `.Thinking`, such as `<think>` and `</think>`."""
        around = text_around(self._templates[MAIN], "Thinking")
        if around is None or not all(text.strip() for text in around):
            return None
        return around[0].split()[-1], around[1].split()[0]

    def _render_turns(self, messages: Sequence[TemplateMessage], flags: Mapping[str, Value]) -> str:
        """Render with an older template, which writes one turn: run it per turn, open-ended for the last."""
        main = self._templates[MAIN]
        pieces: list[str] = []
        length = 0
        turn = _EMPTY_TURN
        for message in messages:
            name = _PART_OF_TURN.get(message.role)
            if name is None:
                continue
            if any(turn[later] for later in _LATER[name]):
                pieces.append(self._evaluate(main, **turn, **flags))
                length += len(pieces[-1])
                current_meter().expect(length)
                turn = _EMPTY_TURN
            turn = {**turn, name: message.content}
        pieces.append(self._evaluate(cut_after(main, "Response"), **turn, **flags))
        return "".join(pieces)

    def _evaluate(self, nodes: syntax.Nodes, **data: Value) -> str:
        return evaluate(self._templates, nodes, Map(data))


_EMPTY_TURN: Mapping[str, str] = {"System": "", "Prompt": "", "Response": ""}
_PART_OF_TURN = {"system": "System", "user": "Prompt", "assistant": "Response"}
# A part begins a new turn if the current turn already contains one of these.
_LATER = {"System": ("Prompt", "Response"), "Prompt": ("Response",), "Response": ()}


def _flags(think: bool | str | None) -> Mapping[str, Value]:
    return {
        "Think": bool(think),
        "ThinkLevel": think if isinstance(think, str) else "",
        "IsThinkSet": think is not None,
    }
