"""How a model wants conversations written, and how what it answers is read: one decision, for the server, for
Python and for `chaski run` alike.

A model may name a renderer, which goes before all. It may bring a template of Ollama, in Go's language, and
one of its file, in Jinja. Ollama's goes first, unless the file's can do more (then Ollama's still fills in),
or the model names a renderer that is not known: what stands beside it is no whole template.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chaski.chat.defaults import no_renderer
from chaski.chat.file_templates import file_templates
from chaski.chat.images import take_images
from chaski.errors import OptionError, UnsupportedError
from chaski.formats.gguf import GGUFFile

if TYPE_CHECKING:
    from chaski.text.parsers import Parser
    from chaski.text.template import ChatTemplate, GoTemplate, PlainTemplate
    from chaski.text.template.renderers import Renderer

__all__ = [
    "ChatFormat",
    "GoFormat",
    "JinjaFormat",
    "TemplateSources",
    "choose_chat_format",
    "go_format",
    "plain_format",
]

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
Think = bool | str | None

_NOTHING: Mapping[str, Any] = {}
_OLLAMA_KEYS = ("thinking", "tool_calls", "tool_name")
_THINKING_VARIABLES = ("enable_thinking", "reasoning_content", "reasoning_effort", "thinking")


@dataclass(frozen=True, slots=True)
class TemplateSources:
    """All that says how conversations with a model are written.

    name           the model's, for messages
    architecture   of its file
    jinja          the template of its file
    bos, eos       what templates in Jinja call by these names
    go             the template of Ollama that was stored with it
    renderer_name  what the model asks for instead of a template
    renderer       what stands for that, where it is known
    parser         the format of answers that was stored with it; empty where the template shows it
    tool_jinja     what the file has instead of `jinja` where there are tools
    """

    name: str
    architecture: str
    jinja: str | None = None
    bos: str = ""
    eos: str = ""
    go: str | None = None
    renderer_name: str = ""
    renderer: Renderer | None = None
    parser: str = ""
    tool_jinja: str | None = None

    @classmethod
    def of(
        cls, file: GGUFFile, name: str, *, go: str | None = None, renderer: str = "", parser: str = ""
    ) -> TemplateSources:
        """Read them off a model's file and what was stored with it."""
        from chaski.text.template.renderers import find_renderer

        tokens = file.get("tokenizer.ggml.tokens", list[str], ())
        ids = [file.get(f"tokenizer.ggml.{role}_token_id", int, None) for role in ("bos", "eos")]
        bos, eos = ("" if i is None or not 0 <= i < len(tokens) else tokens[i] for i in ids)
        jinja, tool_jinja = file_templates(file)
        return cls(
            name,
            file.architecture,
            jinja,
            bos,
            eos,
            go,
            renderer,
            find_renderer(renderer, file.num_weights),
            parser,
            tool_jinja,
        )


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A way of writing conversations. Messages, tools and `think` are those of Ollama's API.

    capabilities   Ollama's words for what it knows: tools, insert, thinking
    parser         the name of the format that answers are in
    thinking_tags  what stands around thinking, where that is known
    tool_call_tag  what stands before calls, where a Go template shows it
    source         the template as it is stored; None for plain text
    """

    capabilities: tuple[str, ...]
    parser: str
    thinking_tags: tuple[str, str] | None = None
    tool_call_tag: str = ""
    source: str | None = None

    def thinking(self, think: Think = None) -> Think:
        """The `think` that a template is given: a model that can think does, unless the caller says no."""
        return True if think is None and "thinking" in self.capabilities else think

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
class GoFormat(ChatFormat):
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
class JinjaFormat(ChatFormat):
    """By the template of the file, or without any. insertion: what fills in, if the store has it."""

    template: ChatTemplate | PlainTemplate | None = None
    insertion: GoFormat | None = None

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
            self.insertion.fill_in(prompt, suffix)
            if self.insertion
            else ChatFormat.fill_in(self, prompt, suffix)
        )


def choose_chat_format(sources: TemplateSources) -> ChatFormat:
    """The way of a model. Raises TemplateError, or UnsupportedError where it names one that is not there."""
    if sources.renderer is not None:
        return _renderer_format(sources, sources.renderer)
    jinja = None if sources.jinja is None else _jinja_format(sources, sources.jinja)
    if sources.renderer_name and jinja is None:
        raise UnsupportedError(no_renderer(sources.name, sources.renderer_name))
    if sources.go is None or sources.renderer_name:
        return jinja or plain_format()
    go = go_format(sources.go, sources)
    if jinja is None or not set(jinja.capabilities) > set(go.capabilities) - {"insert"}:
        return go
    if "insert" in go.capabilities:
        return replace(jinja, capabilities=(*jinja.capabilities, "insert"), insertion=go)
    return jinja


def go_format(source: str, sources: TemplateSources) -> GoFormat:
    """By a template of Ollama, of the model or of a request."""
    from chaski.text.template import GoTemplate

    template = GoTemplate(source)
    tags = template.thinking_tags()
    parser = _parser(sources, source)
    thinks = tags is not None or "think" in template.names or parser == "harmony"
    found = {"tools": "tools" in template.names, "insert": "suffix" in template.names, "thinking": thinks}
    names = tuple(name for name, is_there in found.items() if is_there)
    return GoFormat(names, parser, tags, template.tool_call_tag(), source, template)


def _jinja_format(sources: TemplateSources, source: str) -> JinjaFormat:
    from chaski.text.parsers.formats import tags_in
    from chaski.text.template import ChatTemplate

    both = f"{source}{sources.tool_jinja or ''}"
    parser = _parser(sources, both)
    tags = tags_in(both)
    thinks = tags is not None or parser == "harmony" or any(name in both for name in _THINKING_VARIABLES)
    found = {"tools": "tools" in both, "thinking": thinks}
    names = tuple(name for name, is_there in found.items() if is_there)
    template = ChatTemplate(source, sources.bos, sources.eos, tool_use=sources.tool_jinja)
    return JinjaFormat(names, parser, tags, "", source, template)


def _renderer_format(sources: TemplateSources, renderer: Renderer) -> JinjaFormat:
    """By a template of ours. What the model can do besides is in the format of its answers."""
    from chaski.text.parsers.formats import FORMATS
    from chaski.text.template import ChatTemplate

    source = renderer.source
    parser = _named_parser(sources) or renderer.parser
    format = FORMATS[parser]
    found = {"tools": "tools" in source, "thinking": format.thinks}
    names = tuple(name for name, is_there in found.items() if is_there)
    return JinjaFormat(
        names, parser, format.thinking, "", source, ChatTemplate(source, sources.bos, sources.eos)
    )


def plain_format() -> JinjaFormat:
    """Without any template."""
    from chaski.text.template import PlainTemplate

    return JinjaFormat((), "passthrough", template=PlainTemplate())


def _parser(sources: TemplateSources, source: str) -> str:
    """The format that was stored with the model; else what the template shows. Raises UnsupportedError."""
    from chaski.text.parsers import choose_format

    return _named_parser(sources) or choose_format(source, sources.architecture)


def _named_parser(sources: TemplateSources) -> str:
    """The format that was stored with the model, if one was. Raises UnsupportedError."""
    from chaski.text.parsers.formats import FORMATS

    named = sources.parser
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
    """A message of Ollama's API as transformers' templates expect it. What they know besides stays."""
    found = {key: value for key, value in message.items() if key not in _OLLAMA_KEYS}
    found["content"] = message.get("content") or ""
    if thinking := message.get("thinking"):
        found |= {"reasoning_content": thinking, "thinking": thinking}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [_call(call) for call in calls]
    if name := message.get("tool_name"):
        found["name"] = name
    return found


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    named = {"name": function.get("name", ""), "arguments": function.get("arguments") or {}}
    return {"type": "function", "id": call.get("id") or "", "function": named}
