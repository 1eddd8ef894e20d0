"""The words for the source of a model's proposed tokens, other than its own text."""

from __future__ import annotations

from pathlib import Path

from chaski.errors import ChaskiError
from chaski.formats.gguf import GGUFFile

__all__ = ["has_heads", "proposals"]


def has_heads(file: GGUFFile) -> bool:
    """True if a model's file has a block for multi-token prediction."""
    return any(".nextn." in name for name in file.tensors)


def proposals(has_heads: bool, draft: Path | None) -> str:
    """Return what proposes tokens, in words; empty where only the text itself does, or nothing.

    `draft` is the file that is given as a draft, which replaces the model's own heads.
    """
    from chaski.formats.gguf import open_gguf
    from chaski.model.drafts import is_attached

    if draft is None:
        return "n-grams, built-in heads" if has_heads else ""
    try:
        with open_gguf(draft) as file:
            return f"n-grams, {file.architecture} draft" if is_attached(file) else "draft model"
    except ChaskiError:
        return "draft model"
