"""`ChatTemplate`: a model's own Jinja template, compiled once and rendered within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from chaski.errors import TemplateError
from chaski.text.template.meter import (
    Meter,
    RenderLimits,
    TemplateLimitError,
    check_source,
    deadline_of,
    guarded,
)
from chaski.text.template.probes import TOOL, Rendering
from chaski.text.template.rewriting import Rewriting
from chaski.text.template.tools import with_descriptions
from chaski.text.template.turns import in_parts

if TYPE_CHECKING:
    from chaski.text.template.sandbox import TemplateEnvironment


_PROBE = "a text that no template has"
# The name under which templates of SmolLM 3 read tools.
_XML_TOOLS = "xml_tools"


class ChatTemplate:
    """A template in the dialect of Hugging Face transformers. Safe to use from several threads.

    It sees only plain data, reads no files and changes nothing. Every error in it is a `TemplateError`, and
    exceeding one of the `RenderLimits` (time, output, intermediate values) is one, too.
    """

    def __init__(
        self,
        source: str,
        bos_token: str,
        eos_token: str,
        limits: RenderLimits | None = None,
        tool_use: str | None = None,
        call_tags: tuple[str, str] = ("", ""),
    ) -> None:
        """Compile the template; it sees the tokens as variables `bos_token` and `eos_token`.

        tool_use: a template for conversations with tools, for models that have two
        call_tags: the texts around a call of the model, for templates that do not write earlier calls
        """
        self._call_tags = call_tags
        self._limits = limits or RenderLimits()
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._sources = [source] if tool_use is None else [source, tool_use]
        self._reads_xml_tools = any(_XML_TOOLS in each for each in self._sources)
        for each in self._sources:
            check_source(each)
        with guarded(self._limits):
            self._templates = [_environment().from_string(each) for each in self._sources]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: object,
    ) -> str:
        """Return the text of the conversation, plus the start of an answer if `add_generation_prompt`.

        `extra` are further variables that this model's template knows (`enable_thinking`, `documents`). All
        values must be plain data, as from JSON; others raise `TemplateError`. Messages that the template
        would refuse or drop are adapted; see `Rewriting`. If the template reads only lists of parts, as
        templates of many vision models do, a text becomes a list of one part.
        """
        variables: dict[str, Any] = _plain_data(
            {**self._usual, "tools": tools, "add_generation_prompt": add_generation_prompt, **extra}
        )
        turns = self._rewriting.rewritten(_plain_data(list(messages)))
        deadline = deadline_of(self._limits)
        try:
            return self._text(turns, variables, deadline)
        except TemplateLimitError:
            raise
        except TemplateError as error:
            refusal = error
        for tools_given, form in self._plainer(turns, tools):
            try:
                return self._text(form, {**variables, "tools": tools_given}, deadline)
            except TemplateLimitError:
                break
            except TemplateError:
                continue
        raise refusal

    def probing(self) -> Rendering:
        """Return a function that renders probes unchanged; all its calls share the time limit of one."""
        deadline = deadline_of(self._limits)

        def render(
            messages: Sequence[Mapping[str, Any]],
            tools: Sequence[Mapping[str, Any]] | None,
            /,
            **variables: object,
        ) -> str:
            given = {**self._usual, "tools": tools, "add_generation_prompt": True, **variables}
            return self._text(messages, given, deadline)

        return render

    @property
    def variables(self) -> frozenset[str]:
        """The names that the template looks up and does not set itself."""
        from jinja2.meta import find_undeclared_variables

        with guarded(self._limits):
            parsed = [_environment().parse(each) for each in self._sources]
            return frozenset().union(*map(find_undeclared_variables, parsed))

    @cached_property
    def _reads_parts_only(self) -> bool:
        """Return whether the template loses or refuses a content that is text, but shows a list of parts."""
        return not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])

    @cached_property
    def image_text(self) -> str | None:
        """The text that the template writes for an image if it reads only parts; None for all others."""
        probe = {"type": "text", "text": _PROBE}
        _, *behind = self._probed([probe, {"type": "image"}, probe]).split(_PROBE)
        written = behind[0].strip() if len(behind) == 2 else ""
        return written if written and self._reads_parts_only else None

    @cached_property
    def _no_tools(self) -> list[Any] | None:
        """The value for no tools: None, or an empty list if the template does not check for None."""
        render, message = self.probing(), {"role": "user", "content": _PROBE}
        empty: list[Any] = []
        for nothing in (None, empty):
            try:
                render([message], nothing)
            except TemplateError:
                continue
            return nothing
        return None

    @cached_property
    def _rewriting(self) -> Rewriting:
        return Rewriting(self._probing_calls, self._call_tags)

    def _probing_calls(self) -> Callable[[Sequence[Mapping[str, Any]]], str]:
        render = self.probing()
        return lambda messages: render(messages, [TOOL] if _has_calls(messages) else self._no_tools)

    def _plainer(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> Iterator[tuple[Sequence[Mapping[str, Any]] | None, Sequence[Mapping[str, Any]]]]:
        """Yield the tools and messages to try after a refusal.

        Some templates fail for a tool or a parameter without a description.
        """
        given = self._no_tools if tools is None else with_descriptions(tools)
        if given != tools:
            yield given, messages
        for form in self._rewriting.plainer(messages):
            yield given, form

    def _shows(self, content: object) -> bool:
        return _PROBE in self._probed(content)

    def _probed(self, content: object) -> str:
        variables = {**self._usual, "tools": None, "add_generation_prompt": True}
        message = {"role": "user", "content": content}
        try:
            return self._generated({**variables, "messages": [message]})
        except TemplateError:
            return ""

    @property
    def _usual(self) -> dict[str, Any]:
        return {"documents": None, **self._tokens}

    def _text(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        deadline: float | None = None,
    ) -> str:
        turns = in_parts(messages) if self._reads_parts_only else messages
        return self._generated({**variables, "messages": list(turns)}, deadline)

    def _generated(self, variables: Mapping[str, Any], deadline: float | None = None) -> str:
        if self._reads_xml_tools:
            variables = {_XML_TOOLS: variables["tools"], **variables}
        with guarded(self._limits, deadline) as meter:
            pieces = self._templates[-1 if variables["tools"] else 0].generate(variables)
            return "".join(_limited(pieces, meter))


def _has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(message.get("tool_calls") for message in messages)


@cache
def _environment() -> TemplateEnvironment:
    """Return the environment, made on first use because importing Jinja is slow."""
    from chaski.text.template.sandbox import TemplateEnvironment

    return TemplateEnvironment()


def _limited(pieces: Iterator[str], meter: Meter) -> Iterator[str]:
    length = 0
    for piece in pieces:
        length += len(piece)
        meter.expect(length)
        meter.tick()
        yield piece


def _plain_data(value: object) -> Any:
    """Copy JSON-like data with exact types, so that no object with methods reaches a template."""
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case Mapping():
            return {_plain_data(key): _plain_data(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain_data(item) for item in value]
        case _:
            raise TemplateError(f"chat templates take plain data, not {type(value).__name__}: {value!r:.60}")
