"""The prompts of the fixture and the sizes of their pictures; see tools/fixtures/make_gemma4.py."""

from __future__ import annotations

# Texts of users, with height and width of the pictures for their placeholders.
PROMPTS: dict[str, tuple[str, list[tuple[int, int]]]] = {
    "text": ("The runner carries the message over the mountains.", []),
    "odd": ("The runner carries\n[img-0]the load over the mountains.", [(37, 53)]),
    "line": ("[img-0] 0 1 12 123", [(2, 90)]),
    "two": ("the[img-0][img-1] llama and the load", [(131, 41), (9, 3)]),
}
NAMES = ["causal", "large", "unified"]
# Limits of rows for the published processor, and sizes of pictures for it.
BUDGETS = [70, 280, 1120]
PICTURES = [(803, 1511), (700, 333), (1, 12), (20, 900)]
