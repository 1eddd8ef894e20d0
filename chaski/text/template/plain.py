"""The stand-in for a model without a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaski.errors import TemplateError
from chaski.text.template.probes import Rendering


class PlainTemplate:
    """Plain text: the contents of all messages, a blank line between them, and no roles.

    A single message is thus the text that the model continues. It supports neither turns nor tools, so the
    code that uses it tells the user.
    """

    variables: frozenset[str] = frozenset()
    """The names that the template looks up: none."""
    image_text: str | None = None
    """The text that the template writes for an image: none of its own."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: object,
    ) -> str:
        """Join the contents. Tools, or a content that is not text, are a `TemplateError`."""
        if tools:
            raise TemplateError("this model has no chat template, so it cannot be told about tools")
        contents = [message.get("content") for message in messages]
        if not all(isinstance(content, str) for content in contents):
            raise TemplateError("this model has no chat template, so every message must have text as content")
        return "\n\n".join(str(content) for content in contents)

    def probing(self) -> Rendering:
        """Return a function that renders probes."""
        return lambda messages, tools, /, **_: self.render(messages, tools=tools)
