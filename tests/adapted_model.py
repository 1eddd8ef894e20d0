"""A tiny model with LoRA adapters, and its results for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.quant import QuantType
from tests.adapters import SEVEN, adapted_names, random_adapter
from tests.tiny_llama import write_tiny_llama

__all__ = ["adapted_answers", "write_adapted"]

CHOICES: list[Any] = [None, "one", [("one", 0.5), ("two", 1.5)], "few", [("few", 1.0), ("one", -1.0)]]
PROMPT = "the load carries the runner over the mountains"


def write_adapted(folder: Path) -> Mapping[str, Path]:
    """Write `model`, and adapters of several ranks and types; one of them changes only a few matrices."""
    path = write_tiny_llama(folder / "model.gguf", matrices=QuantType.Q8_0)
    with open_gguf(path) as file:
        shapes: dict[tuple[str, ...], dict[str, tuple[int, ...]]] = {
            modules: {name: file.tensors[name].shape for name in adapted_names(file, modules)}
            for modules in (SEVEN, SEVEN[:2])
        }
    found = {"model": path}
    for seed, (name, rank, type, modules) in enumerate(
        [
            ("one", 16, QuantType.F16, SEVEN),
            ("two", 5, QuantType.F32, SEVEN),
            ("few", 33, QuantType.BF16, SEVEN[:2]),
        ]
    ):
        found[name] = random_adapter(folder / f"{name}.gguf", shapes[modules], seed, rank, type, size=0.2)
    return found


def adapted_answers(files: Mapping[str, Path], **load: Any) -> object:
    """Return logits of each choice of adapters, answers of all at once, and logits of a later adapter."""
    chosen = [files[name] for name in ("one", "two", "few")]
    options: Any = {"num_predict": 12, "temperature": 0, "ignore_eos": True}
    with chaski.load(files["model"], adapters=chosen, threads=1, context=128, parallel=5, **load) as llm:
        logits = [llm.logits(PROMPT, adapter=choice).tobytes() for choice in CHOICES]
        assert len(set(logits)) == len(CHOICES)
        streams = [llm.stream(PROMPT, adapter=choice, **options) for choice in CHOICES]
        together = [[*stream] for stream in streams]
        texts = ["".join(getattr(event, "text", "") for event in events) for events in together]
        llm.unload_adapter("two")
        llm.load_adapter("again", files["two"])
        again = llm.logits(PROMPT, adapter="again").tobytes()
        assert any(held.adapters for held in llm.memory().devices)
    return logits, texts, again
