"""The prompts of the fixture and their pictures; see tools/fixtures/make_llava.py."""

from __future__ import annotations

# Height and width: both are cropped, one to its middle column, one to its middle row.
SIZES = {"high": (61, 30), "wide": (23, 90)}

# Texts as users write them, with the pictures of their placeholders.
TEXTS: dict[str, tuple[str, list[str]]] = {
    "silent": ("The runner carries the message.", []),
    "one": ("USER: [img-0]\nWhat is in the mountains? ASSISTANT:", ["wide"]),
    "two": ("The runner[img-0][img-1] carries the message.", ["high", "wide"]),
}
