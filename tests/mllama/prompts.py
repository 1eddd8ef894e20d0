"""The prompts of the fixture and their pictures; see tools/fixtures/make_mllama.py."""

from __future__ import annotations

import numpy as np

# Height and width: within one tile, tall, wide, and larger than four tiles.
SIZES = {"small": (17, 20), "high": (40, 19), "wide": (23, 90), "large": (61, 70)}

# Pictures with states of every layer in the fixture: three, two and no empty tiles.
LAYERED = ["small", "high", "wide"]


def _text(seed: int, count: int) -> list[int | str]:
    return list(np.random.default_rng(seed).integers(0, 280, count).tolist())


# Token ids, with names of pictures at their places.
PROMPTS: dict[str, list[int | str]] = {
    "text": _text(1, 24),
    "one": [*_text(2, 7), "high", *_text(3, 17)],
    "first": ["wide", *_text(4, 9)],
    "two": [*_text(5, 5), "large", *_text(6, 9), "small", *_text(7, 11)],
}

# Texts of users, with the pictures for their placeholders.
TEXTS: dict[str, tuple[str, list[str]]] = {
    "spoken": ("The runner[img-0] carries the message over[img-1]\nthe mountains, 0 1 12.", ["wide", "high"]),
    "silent": ("The runner carries the message.", []),
}
