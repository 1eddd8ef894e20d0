"""`Writer`: how a model wants conversations written, and how what it answers is read.

A model may name a renderer, which goes before all. It may bring a template of Ollama, in Go's language, and
one of its file, in Jinja. Ollama's goes first, unless the file's can do more (then Ollama's still fills in),
or the model names a renderer that is not known: what stands beside it is no whole template.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chaski.errors import OptionError, UnsupportedError
from chaski.runner.image_sources import take_images
from chaski.runner.stored import no_renderer

if TYPE_CHECKING:
    from chaski.server.catalog import Facts
    from chaski.text.parsers import Parser
    from chaski.text.template import ChatTemplate, GoTemplate, PlainTemplate
    from chaski.text.template.renderers import Renderer

__all__ = ["GoWriter", "JinjaWriter", "Writer", "choose_writer", "go_writer", "plain_writer"]

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
Think = bool | str | None

_NOTHING: Mapping[str, Any] = {}
_THINKING_VARIABLES = ("enable_thinking", "reasoning_content", "reasoning_effort", "thinking")


@dataclass(frozen=True, slots=True)
class Writer:
    """A way of writing conversations. Messages, tools and `think` are those of Ollama's API.

    capabilities   Ollama's words for what it knows: tools, insert, thinking
    parser         the name of the format that answers are in
    thinking_tags  what stands around thinking, where that is known
    tool_call_tag  what stands before calls, where a Go template shows it
    """

    capabilities: tuple[str, ...]
    parser: str
    thinking_tags: tuple[str, str] | None = None
    tool_call_tag: str = ""

    def render(
        self,
        messages: Messages,
        tools: Tools | None = None,
        think: Think = None,
        variables: Mapping[str, Any] = _NOTHING,
    ) -> str:
        """The text of a conversation, up to where the answer begins.

        Raises TemplateError, or OptionError for `variables` that the template does not have.
        """
        raise NotImplementedError

    def fill_in(self, prompt: str, suffix: str) -> str:
        """The text for what belongs between two texts. Raises UnsupportedError."""
        raise UnsupportedError("this model does not support insert")

    def reader(self, prompt: str, tools: Tools = (), thinks: bool = True, thought: str = "") -> Parser:
        """A machine that takes the answer to `prompt` apart; `thought` at its end goes on."""
        from chaski.text.parsers import parser_for

        return parser_for(self.parser, tools, prompt, thinks, self.thinking_tags, self.tool_call_tag, thought)


@dataclass(frozen=True, slots=True)
class GoWriter(Writer):
    """By a template of Ollama."""

    template: GoTemplate | None = None

    def render(
        self,
        messages: Messages,
        tools: Tools | None = None,
        think: Think = None,
        variables: Mapping[str, Any] = _NOTHING,
    ) -> str:
        assert self.template is not None
        _check_variables(variables, ())
        return self.template.render(messages, tools=tools, think=think)

    def fill_in(self, prompt: str, suffix: str) -> str:
        assert self.template is not None
        return self.template.render_prompt(prompt, suffix=suffix)


@dataclass(frozen=True, slots=True)
class JinjaWriter(Writer):
    """By the template of the file, or without any. insertion: what fills in, if the store has it."""

    template: ChatTemplate | PlainTemplate | None = None
    insertion: GoWriter | None = None

    def render(
        self,
        messages: Messages,
        tools: Tools | None = None,
        think: Think = None,
        variables: Mapping[str, Any] = _NOTHING,
    ) -> str:
        assert self.template is not None
        if variables:
            _check_variables(variables, self.template.variables)
        extra: dict[str, Any] = {**variables, **({} if think is None else _thinking_variables(think))}
        turns, _ = take_images(messages)
        return self.template.render([_as_jinja(turn) for turn in turns], tools=tools or None, **extra)

    def fill_in(self, prompt: str, suffix: str) -> str:
        return (
            self.insertion.fill_in(prompt, suffix) if self.insertion else Writer.fill_in(self, prompt, suffix)
        )


def choose_writer(facts: Facts) -> Writer:
    """The way of a model. Raises TemplateError, or UnsupportedError where it names one that is not there."""
    model = facts.model
    if facts.renderer is not None:
        return _renderer_writer(facts, facts.renderer)
    jinja = None if facts.jinja is None else _jinja_writer(facts, facts.jinja)
    if model.config.renderer and jinja is None:
        raise UnsupportedError(no_renderer(model.name.short if model.name else "", model.config.renderer))
    if model.template is None or (jinja is not None and model.config.renderer):
        return jinja or plain_writer()
    go = go_writer(model.template, facts)
    if jinja is None or not set(jinja.capabilities) > set(go.capabilities) - {"insert"}:
        return go
    if "insert" in go.capabilities:
        return replace(jinja, capabilities=(*jinja.capabilities, "insert"), insertion=go)
    return jinja


def go_writer(source: str, facts: Facts) -> GoWriter:
    """By a template of Ollama, of the model or of a request."""
    from chaski.text.template import GoTemplate

    template = GoTemplate(source)
    tags = template.thinking_tags()
    parser = _parser(facts, source)
    thinks = tags is not None or "think" in template.names or parser == "harmony"
    found = {"tools": "tools" in template.names, "insert": "suffix" in template.names, "thinking": thinks}
    names = tuple(name for name, is_there in found.items() if is_there)
    return GoWriter(names, parser, tags, template.tool_call_tag(), template)


def _jinja_writer(facts: Facts, source: str) -> JinjaWriter:
    from chaski.text.parsers.formats import tags_in
    from chaski.text.template import ChatTemplate

    parser = _parser(facts, source)
    tags = tags_in(source)
    thinks = tags is not None or parser == "harmony" or any(name in source for name in _THINKING_VARIABLES)
    found = {"tools": "tools" in source, "thinking": thinks}
    names = tuple(name for name, is_there in found.items() if is_there)
    return JinjaWriter(names, parser, tags, "", ChatTemplate(source, facts.bos, facts.eos))


def _renderer_writer(facts: Facts, renderer: Renderer) -> JinjaWriter:
    """By a template of ours. What the model can do besides is in the format of its answers."""
    from chaski.text.parsers.formats import FORMATS
    from chaski.text.template import ChatTemplate

    source = renderer.source
    parser = _named_parser(facts) or renderer.parser
    format = FORMATS[parser]
    found = {"tools": "tools" in source, "thinking": format.thinks}
    names = tuple(name for name, is_there in found.items() if is_there)
    return JinjaWriter(names, parser, format.thinking, "", ChatTemplate(source, facts.bos, facts.eos))


def plain_writer() -> JinjaWriter:
    """Without any template."""
    from chaski.text.template import PlainTemplate

    return JinjaWriter((), "passthrough", template=PlainTemplate())


def _parser(facts: Facts, source: str) -> str:
    """The format that was stored with the model; else what the template shows. Raises UnsupportedError."""
    from chaski.text.parsers import choose_format

    return _named_parser(facts) or choose_format(source, facts.architecture)


def _named_parser(facts: Facts) -> str:
    """The format that was stored with the model, if one was. Raises UnsupportedError."""
    from chaski.text.parsers.formats import FORMATS

    named = facts.model.config.parser
    if named and named not in FORMATS:
        raise UnsupportedError(
            f"the model asks for the parser {named!r}, which this version does not know; create it anew from "
            f"this one with a PARSER that it knows: {', '.join(FORMATS)}"
        )
    return named


def _check_variables(given: Collection[str], known: Collection[str]) -> None:
    """Refuse what a template would never look at."""
    if unknown := sorted(set(given) - set(known)):
        raise OptionError(
            f"chat_template_kwargs.{unknown[0]:.80} is no variable of this model's template; leave it out"
        )


def _thinking_variables(think: bool | str) -> dict[str, object]:
    """How templates are told: whether to think under two names, and how much."""
    effort = {"reasoning_effort": think} if isinstance(think, str) else {}
    return {"enable_thinking": bool(think), "thinking": bool(think), **effort}


def _as_jinja(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of Ollama's API as transformers' templates expect it."""
    found: dict[str, Any] = {"role": message["role"], "content": message.get("content") or ""}
    if thinking := message.get("thinking"):
        found |= {"reasoning_content": thinking, "thinking": thinking}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [_call(call) for call in calls]
    if name := message.get("tool_name"):
        found["name"] = name
    if call_id := message.get("tool_call_id"):
        found["tool_call_id"] = call_id
    return found


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    named = {"name": function["name"], "arguments": function.get("arguments") or {}}
    return {"type": "function", "id": call.get("id") or "", "function": named}
