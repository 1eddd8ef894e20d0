"""`ChatFormat`: writes conversations by a template of Ollama or of the file, or without a template."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from chaski.chat.arguments import read_arguments
from chaski.chat.continuing import begun_field, continued
from chaski.chat.images import with_image_parts, with_numbered_images, with_placed_images
from chaski.chat.layout import without_placeholders
from chaski.chat.switches import silenced, thinking_variables
from chaski.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from chaski.text.parsers import Lead, Parser
    from chaski.text.parsers.schema import Tools
    from chaski.text.parsers.stream import Block
    from chaski.text.template.chat import ChatTemplate
    from chaski.text.template.go import GoTemplate
    from chaski.text.template.plain import PlainTemplate

__all__ = ["ChatFormat", "FillInTokens", "GoFormat", "JinjaFormat", "Message", "Think"]

Message: TypeAlias = Mapping[str, Any]
"""One turn of a conversation: at least `role` (system, user, assistant) and `content`.

`images` are a list of bytes of image files, or paths. `image_places` are the offsets in the content at which
they stand; without them, images stand in front of it.
"""
Think: TypeAlias = bool | str | None
"""True or False: the model thinks or not; a text: how much; None: the model's default."""

FillInTokens: TypeAlias = tuple[str, str, str]
"""Control tokens of a file, placed before the prompt, the suffix and the answer."""

_NOTHING: Mapping[str, Any] = {}
# The name that Seed-OSS reads.
_BUDGET = "thinking_budget"
_OLLAMA_KEYS = ("thinking", "tool_calls", "tool_name", "images")


class ChatFormat(Struct, frozen=True):
    """Writes conversations as text. Messages, tools and `think` are those of Ollama's API.

    capabilities   its capabilities in Ollama's words: tools, insert, thinking
    parser_name    name of the parser of its answers
    thinking_tags  opening and closing tag of thoughts; None if they are not known
    call_block     way of writing calls that only the template shows; None if the parser knows it
    source         template as it is stored; None for plain text
    """

    capabilities: tuple[str, ...]
    parser_name: str
    thinking_tags: tuple[str, str] | None = None
    call_block: Block | None = None
    source: str | None = None

    def thinking(self, think: Think = None) -> Think:
        """Return `think` for a template: a model that can think does so unless the caller forbids it."""
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

    def knows_role(self, role: str) -> bool:
        """Return whether the template treats a role differently from an unknown role."""
        return False

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

    def budget_variables(self, budget: int | None) -> Mapping[str, Any]:
        """Return the variables that tell a template the largest number of tokens of thoughts, if it asks."""
        return _NOTHING

    def end_of_thought(self, lead: Lead) -> str:
        """Return the text between a thought and the answer, as the template writes it, or else the family."""
        from chaski.text.parsers.formats import usual_end

        return usual_end(self.parser_name, lead)

    def end_of_answer(self) -> str:
        """Return the text that a template writes between an answer and the next turn."""
        return ""

    def parser(self, prompt: str, tools: Tools = (), thinks: bool = True, thought: str = "") -> Parser:
        """Return a parser of the answer to `prompt`; a `thought` at the end of the prompt continues."""
        from chaski.text.parsers.formats import parser_for

        tags, block = self.thinking_tags, self.call_block
        return parser_for(self.parser_name, tools, prompt, thinks, tags, block, thought)


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
        from chaski.text.template.tool_calls import arguments_as_mapping

        _check_variables(variables, ())
        placed = with_placed_images(messages)
        if any(message.get("images") for message in placed):
            tools = without_placeholders(tools)
        turns = arguments_as_mapping([_with_read_arguments(turn) for turn in placed])
        return self.template.render(turns, tools=tools, think=think)

    def knows_role(self, role: str) -> bool:
        return _knows_role(self.template, role)

    def end_of_thought(self, lead: Lead) -> str:
        return _shown_end(self.template, lead.closing) or ChatFormat.end_of_thought(self, lead)

    def end_of_answer(self) -> str:
        return _shown_ending(self.template)

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
        source = self.source or ""
        switches = {} if think is None else thinking_variables(self.template, source, think)
        if think is False:
            messages = silenced(self.template, source, messages)
        extra: dict[str, Any] = {**switches, **variables}

        def write(turns: Sequence[Message], begins: bool) -> str:
            return self._written(turns, tools or None, {**extra, "add_generation_prompt": begins})

        if (field := begun_field(messages)) is not None:
            return continued(write, messages, field, self.thinking_tags)
        is_empty = bool(messages) and _says_nothing(messages[-1])
        return write(messages[:-1] if is_empty else messages, True)

    def _written(self, messages: Sequence[Message], tools: Tools | None, variables: Mapping[str, Any]) -> str:
        assert self.template is not None
        placed = with_placed_images(messages)
        num_images = sum(len(message.get("images") or ()) for message in placed)
        if num_images:
            tools, variables = without_placeholders(tools), without_placeholders(variables)
        image_text = self.template.image_text if num_images else None
        if image_text is not None:
            turns = [_as_jinja(turn) for turn in with_image_parts(placed, image_text)]
            text = self.template.render(turns, tools=tools, **variables)
            if (numbered := with_numbered_images(text, image_text, num_images)) is not None:
                return numbered
        return self.template.render([_as_jinja(turn) for turn in placed], tools=tools, **variables)

    def knows_role(self, role: str) -> bool:
        return _knows_role(self.template, role)

    def budget_variables(self, budget: int | None) -> Mapping[str, Any]:
        asks = _BUDGET in (self.source or "") and self.template and _BUDGET in self.template.variables
        return {_BUDGET: budget} if asks and budget is not None else _NOTHING

    def end_of_thought(self, lead: Lead) -> str:
        return _shown_end(self.template, lead.closing) or ChatFormat.end_of_thought(self, lead)

    def end_of_answer(self) -> str:
        return _shown_ending(self.template)

    def fill_in(self, prompt: str, suffix: str, tokens: FillInTokens | None) -> str:
        if self.insertion is not None:
            return self.insertion.fill_in(prompt, suffix, tokens)
        return ChatFormat.fill_in(self, prompt, suffix, tokens)


def _knows_role(template: ChatTemplate | GoTemplate | PlainTemplate | None, role: str) -> bool:
    from chaski.text.template.probes import knows_role

    return template is not None and knows_role(template.probing(), role)


@lru_cache(64)
def _shown_end(template: ChatTemplate | GoTemplate | PlainTemplate | None, closing: str) -> str | None:
    from chaski.text.template.probes import end_of_thought

    return None if template is None else end_of_thought(template.probing(), closing)


@lru_cache(64)
def _shown_ending(template: ChatTemplate | GoTemplate | PlainTemplate | None) -> str:
    from chaski.text.template.probes import end_of_answer

    return "" if template is None else end_of_answer(template.probing())


def _check_variables(given: Collection[str], known: Collection[str]) -> None:
    """Raise OptionError for a variable that the template does not read."""
    if unknown := sorted(set(given) - set(known)):
        raise OptionError(
            f"chat_template_kwargs.{unknown[0]:.80} is no variable of this model's template; leave it out"
        )


def _says_nothing(message: Message) -> bool:
    """Return whether a message is an answer of the assistant without any words or calls."""
    is_empty = not any(message.get(name) for name in ("content", "thinking", "tool_calls", "images"))
    return message.get("role") == "assistant" and is_empty


def _as_jinja(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of Ollama's API in the form of transformers' templates; all other keys stay."""
    found = {key: value for key, value in message.items() if key not in _OLLAMA_KEYS}
    found["content"] = message.get("content") or ""
    if thinking := message.get("thinking"):
        found |= {"reasoning_content": thinking, "thinking": thinking}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [_call(call) for call in calls]
    if name := message.get("tool_name"):
        found["name"] = name
    return found


def _with_read_arguments(message: Message) -> Message:
    """Return a message whose calls have arguments as `read_arguments` returns them."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_arguments(call) for call in calls]} if calls else message


def _with_arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function") or {}
    if function.get("arguments") is None:
        return call
    return {**call, "function": {**function, "arguments": read_arguments(function.get("arguments"))}}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    named = {"name": function.get("name", ""), "arguments": read_arguments(function.get("arguments"))}
    return {"type": "function", "id": call.get("id") or "", "function": named}
