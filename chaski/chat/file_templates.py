"""The chat templates that the file of a model brings."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile

__all__ = ["file_templates", "named_templates"]

_TEMPLATE = "tokenizer.chat_template"


def file_templates(file: GGUFFile) -> tuple[str | None, str | None]:
    """The chat template of a file, and the one that stands for it where there are tools, if there is another.

    A file that has only the latter means it always.
    """
    default, tool_use = (file.get(key, str, None) for key in (_TEMPLATE, f"{_TEMPLATE}.tool_use"))
    return (tool_use, None) if default is None else (default, tool_use)


def named_templates(file: GGUFFile) -> list[str]:
    """The names of all chat templates of a file; `default` is the one without a name."""
    named = [key.removeprefix(f"{_TEMPLATE}.") for key in file.metadata if key.startswith(f"{_TEMPLATE}.")]
    return [*(["default"] if _TEMPLATE in file.metadata else []), *sorted(named)]
