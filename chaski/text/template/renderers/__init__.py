"""Renderers: conversation formats that Ollama stores with a model only by name.

Each is a template here, in the language of chat templates: a part common to all, parts that families share,
and a file of the renderer itself. Templates follow the one that the model's maker publishes. Where that
leaves something open (an answer that continues, results without ids), they follow Ollama.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct

__all__ = ["RENDERERS", "Renderer", "find_renderer"]


class Renderer(Struct, frozen=True):
    """parts: files that form the template, in order. parser: the format of the answers."""

    parser: str
    parts: tuple[str, ...]

    @property
    def source(self) -> str:
        """Return the whole template."""
        return "".join(map(_read, ("_conversation", *self.parts)))


_TAGS = ("_chatml", "_function_tags")
_NEMOTRON = ("_thoughts", *_TAGS, "nemotron-3-nano")
_GEMMA4 = ("_thoughts", "_results", "_gemma4_quote", "_braces", "gemma4")

RENDERERS: Mapping[str, Renderer] = {
    "cogito": Renderer("cogito", ("_thoughts", "_deepseek", "cogito")),
    "cohere": Renderer("cohere", ("_thoughts", "cohere")),
    "deepseek3.1": Renderer("deepseek3", ("_thoughts", "_deepseek", "deepseek3.1")),
    "functiongemma": Renderer(
        "functiongemma", ("_results", "_functiongemma_quote", "_braces", "functiongemma")
    ),
    "gemma4": Renderer("gemma4", _GEMMA4),
    "gemma4-large": Renderer("gemma4", ("gemma4-large", *_GEMMA4)),
    "gemma4-small": Renderer("gemma4", _GEMMA4),
    "glimmer": Renderer("glimmer", ("_thoughts", "_results", "glimmer")),
    "glm-4.7": Renderer("glm-4.7", ("_thoughts", "_glm", "glm-4.7")),
    "glm-ocr": Renderer("glm-ocr", ("_thoughts", "_glm", "glm-ocr")),
    "harmony": Renderer("harmony", ("_thoughts", "_results", "harmony")),
    "laguna": Renderer("laguna", ("_thoughts", "laguna")),
    "lfm2": Renderer("lfm2", ("lfm2",)),
    "lfm2-thinking": Renderer("lfm2-thinking", ("lfm2-thinking", "lfm2")),
    "nemotron-3-nano": Renderer("nemotron-3-nano", _NEMOTRON),
    "nemotron-3.5-nano": Renderer(
        "nemotron-3.5-nano", (*_NEMOTRON[:-1], "nemotron-3.5-nano", "nemotron-3-nano")
    ),
    "olmo3": Renderer("olmo3", ("olmo3",)),
    "olmo3-32b-think": Renderer("olmo3-think", ("_thoughts", "olmo3-32b-think", "olmo3-think")),
    "olmo3-think": Renderer("olmo3-think", ("_thoughts", "olmo3-think")),
    "olmo3.1": Renderer("olmo3", ("olmo3.1", "olmo3")),
    "ornith": Renderer("ornith", ("_thoughts", *_TAGS, "ornith", "qwen3.5")),
    "poolside-v1": Renderer("poolside-v1", ("_thoughts", "_glm", "poolside-v1")),
    "qwen3-coder": Renderer("qwen3-coder", (*_TAGS, "qwen3-coder")),
    "qwen3-vl-instruct": Renderer("qwen3-vl-instruct", ("_thoughts", "_instruct", "_chatml", "qwen3-vl")),
    "qwen3-vl-thinking": Renderer("qwen3-vl-thinking", ("_thoughts", "_chatml", "qwen3-vl")),
    "qwen3.5": Renderer("qwen3.5", ("_thoughts", *_TAGS, "qwen3.5")),
    "qwen3.8": Renderer("qwen3.5", ("_thoughts", *_TAGS, "qwen3.8", "qwen3.5")),
}
"""The renderers by the names that Ollama's stores use, and `harmony`."""

# One name stands for two renderers; models with at least this many weights use the second.
_LARGER = {"gemma4": (10**10, "gemma4-large")}


def find_renderer(name: str, num_weights: int) -> Renderer | None:
    """Return the renderer of a model with `num_weights` weights; None for an unknown name."""
    least, larger = _LARGER.get(name, (0, name))
    return RENDERERS.get(larger if num_weights >= least else name)


@cache
def _read(part: str) -> str:
    return (Path(__file__).parent / f"{part}.jinja").read_text(encoding="utf-8")
