"""The sources of a model's chat format: templates in its file, and what is stored next to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from chaski.chat.file_templates import file_templates
from chaski.formats.gguf import GGUFFile

if TYPE_CHECKING:
    from chaski.text.template.renderers import Renderer

__all__ = ["StoredFormat", "TemplateSources"]


class StoredFormat(Struct, frozen=True):
    """The chat format of a stored model, as far as the model's file does not define it.

    name      name of the model, for messages
    template  chat template in Go's language; None for the template of the file
    renderer  name of the renderer that writes the conversations; empty where a template does
    parser    name of the parser of its answers; empty where the template shows the format
    """

    name: str
    template: str | None = None
    renderer: str = ""
    parser: str = ""


class TemplateSources(Struct, frozen=True):
    """The sources of a model's chat format, in its file and in the store.

    name           name of the model, for messages
    architecture   architecture of its file
    jinja          template of its file
    bos, eos       texts of these tokens, for templates in Jinja
    go             template of Ollama that is stored with the model
    renderer_name  name of the renderer that is stored instead of a template
    renderer       the renderer of that name, if it is known
    parser         name of the stored parser of answers; empty where the template shows the format
    tool_jinja     template of the file for conversations with tools, if it has one
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
    def of(cls, file: GGUFFile, stored: StoredFormat) -> TemplateSources:
        """Read them from a model's file and the stored model."""
        from chaski.text.template.renderers import find_renderer

        tokens = file.get("tokenizer.ggml.tokens", list[str], ())
        ids = [file.get(f"tokenizer.ggml.{role}_token_id", int, None) for role in ("bos", "eos")]
        bos, eos = ("" if i is None or not 0 <= i < len(tokens) else tokens[i] for i in ids)
        jinja, tool_jinja = file_templates(file)
        return cls(
            stored.name,
            file.architecture,
            jinja,
            bos,
            eos,
            stored.template,
            stored.renderer,
            find_renderer(stored.renderer, file.num_weights),
            stored.parser,
            tool_jinja,
        )
