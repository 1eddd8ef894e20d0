"""Chat templates of a model's file, and its tokens for filling in."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile

__all__ = ["file_templates", "fill_in_tokens", "named_templates"]

_TEMPLATE = "tokenizer.chat_template"
# Older converters write a name instead of RWKV's template.
_NAMED = {
    "rwkv-world": (
        "{% set names = {'system': 'System', 'user': 'User', 'assistant': 'Assistant'} %}"
        "{% for message in messages if message.role in names %}"
        "{{ names[message.role] }}: {{ message.content | trim }}{{ '\\n\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}Assistant:{% endif %}"
    )
}


def file_templates(file: GGUFFile) -> tuple[str | None, str | None]:
    """Return the chat template of a file, and its template for conversations with tools, if there is one.

    A file that has only the latter means it always.
    """
    default, tool_use = (file.get(key, str, None) for key in (_TEMPLATE, f"{_TEMPLATE}.tool_use"))
    default = default and _NAMED.get(default, default)
    return (tool_use, None) if default is None else (default, tool_use)


def named_templates(file: GGUFFile) -> list[str]:
    """The names of all chat templates of a file; `default` is the one without a name."""
    named = [key.removeprefix(f"{_TEMPLATE}.") for key in file.metadata if key.startswith(f"{_TEMPLATE}.")]
    return [*(["default"] if _TEMPLATE in file.metadata else []), *sorted(named)]


def fill_in_tokens(file: GGUFFile) -> tuple[str, str, str] | None:
    """The tokens that a file names for it, under the keys of newer or of older converters."""
    tokens = file.get("tokenizer.ggml.tokens", list[str], ())
    found = []
    for new, old in (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle")):
        ids = (file.get(f"tokenizer.ggml.{name}_token_id", int, None) for name in (new, old))
        token_id = next((each for each in ids if each is not None), None)
        if token_id is None or not 0 <= token_id < len(tokens):
            return None
        found.append(tokens[token_id])
    before, behind, between = found
    return before, behind, between
