"""`ChatFormat`: writes conversations by a template of Ollama or of the file, or without a template."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from chaski.chat.images import with_image_parts, with_numbered_images, with_placed_images
from chaski.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from chaski.text.parsers import Parser
    from chaski.text.parsers.schema import Tools
    from chaski.text.template.chat import ChatTemplate
    from chaski.text.template.go import GoTemplate
    from chaski.text.template.plain import PlainTemplate

__all__ = ["ChatFormat", "FillInTokens", "GoFormat", "JinjaFormat", "Message", "Think"]

Message: TypeAlias = Mapping[str, Any]
"""One turn of a conversation: at least `role` (system, user, assistant) and `content`.

`images` are a list of bytes of image files, or paths.
"""
Think: TypeAlias = bool | str | None
"""True or False: the model thinks or not; a text: how much; None: the model's default."""

FillInTokens: TypeAlias = tuple[str, str, str]
"""Control tokens of a file that stand before the prompt, before the suffix, and before the answer."""

_NOTHING: Mapping[str, Any] = {}
_OLLAMA_KEYS = ("thinking", "tool_calls", "tool_name")


class ChatFormat(Struct, frozen=True):
    """Writes conversations as text. Messages, tools and `think` are those of Ollama's API.

    capabilities   Ollama's words for what it knows: tools, insert, thinking
    parser_name    name of the parser of its answers
    thinking_tags  opening and closing tag of thoughts; None if they are not known
    tool_call_tag  tag before calls, if a Go template shows it
    source         template as it is stored; None for plain text
    """

    capabilities: tuple[str, ...]
    parser_name: str
    thinking_tags: tuple[str, str] | None = None
    tool_call_tag: str = ""
    source: str | None = None

    def thinking(self, think: Think = None) -> Think:
        """Return the `think` for a template: a model that can think does, unless the caller says no."""
        return True if think is None and "thinking" in self.capabilities else think

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        think: Think = None,
        variables: Mapping[str, Any] = _NOTHING,
    ) -> str:
        """The text of a conversation, up to where the answer begins.

        Raises TemplateError, or OptionError for `variables` that the template does not have.
        """
        raise NotImplementedError

    def fill_in(self, prompt: str, suffix: str, tokens: FillInTokens | None) -> str:
        """Return the text that asks for what belongs between two texts, by the template or by `tokens`.

        Raises UnsupportedError if the model has neither.
        """
        if tokens is None:
            raise UnsupportedError(
                "this model does not support insert: neither its template nor its file says how to fill in "
                "before a suffix; leave out suffix, or use a model that can"
            )
        before, behind, between = tokens
        return f"{before}{prompt}{behind}{suffix}{between}"

    def parser(self, prompt: str, tools: Tools = (), thinks: bool = True, thought: str = "") -> Parser:
        """Return a parser of the answer to `prompt`; a `thought` at the end of the prompt goes on."""
        from chaski.text.parsers.formats import parser_for

        tags, call_tag = self.thinking_tags, self.tool_call_tag
        return parser_for(self.parser_name, tools, prompt, thinks, tags, call_tag, thought)


class GoFormat(ChatFormat, frozen=True):
    """Writes conversations by a template of Ollama."""

    template: GoTemplate | None = None

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        think: Think = None,
        variables: Mapping[str, Any] = _NOTHING,
    ) -> str:
        assert self.template is not None
        _check_variables(variables, ())
        return self.template.render(messages, tools=tools, think=think)

    def fill_in(self, prompt: str, suffix: str, tokens: FillInTokens | None) -> str:
        assert self.template is not None
        if "insert" in self.capabilities:
            return self.template.render_prompt(prompt, suffix=suffix)
        return ChatFormat.fill_in(self, prompt, suffix, tokens)


class JinjaFormat(ChatFormat, frozen=True):
    """Writes conversations by the file's template, or as plain text. `insertion` is the format to fill in."""

    template: ChatTemplate | PlainTemplate | None = None
    insertion: GoFormat | None = None

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        think: Think = None,
        variables: Mapping[str, Any] = _NOTHING,
    ) -> str:
        assert self.template is not None
        if variables:
            _check_variables(variables, self.template.variables)
        extra: dict[str, Any] = {**variables, **({} if think is None else _thinking_variables(think))}

        def rendered(placed: Sequence[Message]) -> str:
            assert self.template is not None
            turns = [_as_jinja(turn, self._call_spelling()) for turn in placed]
            return self.template.render(turns, tools=tools or None, **extra)

        num_images = sum(len(message.get("images") or ()) for message in messages)
        image_text = self.template.image_text if num_images else None
        if image_text is not None:
            text = rendered(with_image_parts(messages, image_text))
            if (numbered := with_numbered_images(text, image_text, num_images)) is not None:
                return numbered
        return rendered(with_placed_images(messages))

    def _call_spelling(self) -> str:
        """The text before calls that the template does not write itself; else an empty one."""
        from chaski.text.parsers.formats import FORMATS

        if self.parser_name not in FORMATS or "tool_calls" in (self.source or ""):
            return ""
        return FORMATS[self.parser_name].spelling

    def fill_in(self, prompt: str, suffix: str, tokens: FillInTokens | None) -> str:
        if self.insertion is not None:
            return self.insertion.fill_in(prompt, suffix, tokens)
        return ChatFormat.fill_in(self, prompt, suffix, tokens)


def _check_variables(given: Collection[str], known: Collection[str]) -> None:
    """Raise OptionError for a variable that the template does not read."""
    if unknown := sorted(set(given) - set(known)):
        raise OptionError(
            f"chat_template_kwargs.{unknown[0]:.80} is no variable of this model's template; leave it out"
        )


def _thinking_variables(think: bool | str) -> dict[str, object]:
    """Return the variables that tell a template whether to think (under two names), and how much."""
    effort = {"reasoning_effort": think} if isinstance(think, str) else {}
    return {"enable_thinking": bool(think), "thinking": bool(think), **effort}


def _as_jinja(message: Mapping[str, Any], spelling: str = "") -> dict[str, Any]:
    """Return a message of Ollama's API in the form of transformers' templates; all other keys stay.

    With a `spelling`, calls are a part of the content, a list behind it.
    """
    found = {key: value for key, value in message.items() if key not in _OLLAMA_KEYS}
    found["content"] = message.get("content") or ""
    if thinking := message.get("thinking"):
        found |= {"reasoning_content": thinking, "thinking": thinking}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [_call(call) for call in calls]
        if spelling:
            functions = [call["function"] for call in found["tool_calls"]]
            found["content"] += spelling + json.dumps(functions, ensure_ascii=False)
    if name := message.get("tool_name"):
        found["name"] = name
    return found


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    named = {"name": function.get("name", ""), "arguments": function.get("arguments") or {}}
    return {"type": "function", "id": call.get("id") or "", "function": named}
