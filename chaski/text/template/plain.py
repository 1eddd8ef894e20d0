"""The stand-in for a model without a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaski.errors import TemplateError
from chaski.text.template.probes import Rendering


class PlainTemplate:
    """Plain text: the contents of all messages, separated by blank lines, without roles.

    The model continues a single message as it is. The template supports neither turns nor tools, and the
    calling code reports that to the user.
    """

    variables: frozenset[str] = frozenset()
    """The names that the template looks up: none."""
    image_text: str | None = None
    """The text that the template writes for an image: none."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: object,
    ) -> str:
        """Join the contents. Raises `TemplateError` for tools and for content that is not text."""
        if tools:
            raise TemplateError("this model has no chat template, so it does not support tools")
        contents = [message.get("content") for message in messages]
        if not all(isinstance(content, str) for content in contents):
            raise TemplateError("this model has no chat template, so each message must have text as content")
        return "\n\n".join(str(content) for content in contents)

    def probing(self) -> Rendering:
        """Return a function that renders probes."""
        return lambda messages, tools, /, **_: self.render(messages, tools=tools)
