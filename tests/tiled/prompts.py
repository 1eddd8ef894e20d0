"""The prompts of the fixtures and their pictures; see tools/fixtures/make_tiled.py."""

from __future__ import annotations

# Height and width: several tiles in a column, several in a row, and a square.
SIZES = {"high": (61, 30), "wide": (23, 90), "small": (20, 21)}

# Texts of users, with the pictures for their placeholders.
TEXTS: dict[str, tuple[str, list[str]]] = {
    "silent": ("The runner carries the message.", []),
    "one": ("USER: [img-0]\nWhat is in the mountains? ASSISTANT:", ["wide"]),
    "two": ("The runner[img-0][img-1] carries the message.", ["high", "small"]),
}
