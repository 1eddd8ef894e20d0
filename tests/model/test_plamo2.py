"""The window of PLaMo 2's attention, which the files of llama.cpp lack."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.kvcache import Causal
from chaski.model.registry import build_model
from tests.families import converted


def windows(file: GGUFFile) -> set[int | None]:
    return {kind.span.window for kind in build_model(file).layer_kinds() if isinstance(kind, Causal)}


def test_a_token_sees_the_window_and_itself() -> None:
    with open_gguf(converted("plamo2/usual")) as file:
        assert windows(file) == {257}
    with open_gguf(converted("plamo2/last")) as file:
        assert windows(file) == {None}  # all attending layers see everything
