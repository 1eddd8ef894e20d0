"""The prompts of the fixture and their pictures; see tools/fixtures/make_llava.py."""

from __future__ import annotations

# Height and width: both pictures are cropped, one to its middle columns, one to its middle rows.
SIZES = {"high": (61, 30), "wide": (23, 90)}

# Texts of users, with the pictures for their placeholders.
TEXTS: dict[str, tuple[str, list[str]]] = {
    "silent": ("The runner carries the message.", []),
    "one": ("USER: [img-0]\nWhat is in the mountains? ASSISTANT:", ["wide"]),
    "two": ("The runner[img-0][img-1] carries the message.", ["high", "wide"]),
}
