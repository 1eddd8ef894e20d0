"""The comparison of two files' tokens: a draft proposes tokens of its target."""

from __future__ import annotations

from chaski.errors import OptionError
from chaski.formats.gguf import GGUFFile

__all__ = ["num_shared_tokens"]


def num_shared_tokens(target: GGUFFile, target_size: int, draft: GGUFFile, draft_size: int) -> int:
    """Return how many ids stand for the same tokens in both. One file may have more, as padding.

    Raises OptionError for different tokens.
    """
    ours, theirs = (file.get("tokenizer.ggml.tokens", list[str], ()) for file in (target, draft))
    count = min(len(ours), len(theirs))
    pairs = enumerate(zip(ours[:count], theirs[:count], strict=True))
    different = next((f"token {i} is {b!r}, not {a!r}" for i, (a, b) in pairs if a != b), None)
    if different is None and not count and target_size != draft_size:
        different = f"it has {draft_size} tokens, not {target_size}"
    if different is not None:
        raise OptionError(
            f"{draft.path.name} cannot be the draft of {target.path.name}: {different}; "
            "a draft needs the same vocabulary"
        )
    return min(target_size, draft_size, count or target_size)
