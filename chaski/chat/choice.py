"""The choice of the chat format: it writes the conversations of a model and reads its answers.

A model may name a renderer, which takes precedence. It may bring a template of Ollama, in Go's language, and
one of its file, in Jinja. Ollama's template takes precedence over the file's, except in two cases: the file's
can do more (Ollama's is then used for filling in only), or the model names a renderer that is not known,
because the template that is stored with a renderer is not complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from chaski.chat.defaults import no_renderer
from chaski.chat.formats import ChatFormat, GoFormat, JinjaFormat
from chaski.chat.sources import TemplateSources
from chaski.errors import UnsupportedError

if TYPE_CHECKING:
    from chaski.text.parsers.probe import CallFormat
    from chaski.text.template.chat import ChatTemplate
    from chaski.text.template.go import GoTemplate
    from chaski.text.template.renderers import Renderer

__all__ = ["choose_chat_format", "go_format", "plain_format"]


def choose_chat_format(sources: TemplateSources) -> ChatFormat:
    """Return the chat format of a model.

    Raises TemplateError, and UnsupportedError where the model names a renderer that is not known and its file
    brings no template.
    """
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
    """Return the chat format of a template in Go's language, from a stored model or a request."""
    from chaski.text.template.go import GoTemplate
    from chaski.text.template.probes import shows_tools

    template = GoTemplate(source)
    tags = template.thinking_tags()
    calls = _calls(sources, template, source)
    parser = calls.name
    thinks = tags is not None or "think" in template.names or parser == "harmony"
    has_tools = "tools" in template.names and shows_tools(template.probing())
    found = {"tools": has_tools, "insert": "suffix" in template.names, "thinking": thinks}
    names = tuple(name for name, is_there in found.items() if is_there)
    return GoFormat(names, parser, tags, calls.block, source, template)


def _jinja_format(sources: TemplateSources, source: str) -> JinjaFormat:
    from chaski.text.parsers.formats import tags_in
    from chaski.text.template.chat import ChatTemplate
    from chaski.text.template.probes import shows_tools, thinks

    both = f"{source}{sources.tool_jinja or ''}"
    template = ChatTemplate(source, sources.bos, sources.eos, tool_use=sources.tool_jinja)
    calls = _calls(sources, template, both)
    if not calls.shows and any(call_tags := _call_tags(calls.name, both)):
        template = ChatTemplate(
            source, sources.bos, sources.eos, tool_use=sources.tool_jinja, call_tags=call_tags
        )
    tags, probing = tags_in(both, calls.name if calls.shows else ""), template.probing()
    found = {"tools": shows_tools(probing), "thinking": calls.name == "harmony" or thinks(probing, tags)}
    names = tuple(name for name, is_there in found.items() if is_there)
    return JinjaFormat(names, calls.name, tags, calls.block, source, template)


def _renderer_format(sources: TemplateSources, renderer: Renderer) -> JinjaFormat:
    """Return the chat format of a built-in renderer; the parser's format says whether the model thinks."""
    from chaski.text.parsers.formats import FORMATS
    from chaski.text.template.chat import ChatTemplate
    from chaski.text.template.probes import shows_tools

    source = renderer.source
    parser = _named_parser(sources) or renderer.parser
    format = FORMATS[parser]
    template = ChatTemplate(source, sources.bos, sources.eos)
    found = {"tools": shows_tools(template.probing()), "thinking": format.thinks}
    names = tuple(name for name, is_there in found.items() if is_there)
    return JinjaFormat(names, parser, format.thinking, None, source, template)


def plain_format() -> JinjaFormat:
    """Without any template."""
    from chaski.text.template.plain import PlainTemplate

    return JinjaFormat((), "passthrough", template=PlainTemplate())


def _call_tags(parser: str, template: str) -> tuple[str, str]:
    """Return the texts around a call, or before a list of calls, for a template that does not write calls.

    They are empty if the template does not make the model write them.
    """
    from chaski.text.parsers.blocks import CallBlock
    from chaski.text.parsers.formats import FORMATS

    format = FORMATS[parser]
    if format.spelling or not format.blocks:
        return format.spelling, ""
    block = format.blocks[0]
    if not isinstance(block, CallBlock) or not block.closing or block.opening not in template:
        return "", ""
    return block.opening, block.closing


def _calls(sources: TemplateSources, template: ChatTemplate | GoTemplate, source: str) -> CallFormat:
    """Return the format that was stored with the model; else that of the calls which the template renders.

    Raises UnsupportedError for a stored format that is not known.
    """
    from chaski.text.parsers.probe import CallFormat, choose_call_format

    if named := _named_parser(sources):
        return CallFormat(named)
    return choose_call_format(template.probing(), source, sources.architecture)


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
