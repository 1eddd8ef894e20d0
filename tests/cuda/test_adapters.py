"""LoRA adapters on a GPU: the bits of the cpu backend, whoever else is in the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.quant import QuantType
from chaski.ml.cuda.operations.adapters import rows_with_adapters
from tests.adapters import SEVEN, adapted_names, random_adapter
from tests.cuda.devices import BACKENDS
from tests.tiny_llama import write_tiny_llama

CHOICES: list[Any] = [None, "one", [("one", 0.5), ("two", 1.5)], "few", [("few", 1.0), ("one", -1.0)]]
PROMPT = "the load carries the runner over the mountains"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, and adapters of several ranks and types, one of which changes few matrices."""
    folder = tmp_path_factory.mktemp("adapters")
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_adapters(backend: str, files: dict[str, Path]) -> None:
    chosen = [files[name] for name in ("one", "two", "few")]
    options: Any = {"num_predict": 12, "temperature": 0, "ignore_eos": True}
    found = []
    for name in ("cpu", backend):
        with chaski.load(
            files["model"], adapters=chosen, threads=1, backend=name, context=128, parallel=5
        ) as llm:
            logits = [llm.logits(PROMPT, adapter=choice).tobytes() for choice in CHOICES]
            streams = [llm.stream(PROMPT, adapter=choice, **options) for choice in CHOICES]
            together = [[*stream] for stream in streams]
            texts = ["".join(getattr(event, "text", "") for event in events) for events in together]
            llm.unload_adapter("two")
            llm.load_adapter("again", files["two"])
            again = llm.logits(PROMPT, adapter="again").tobytes()
            (held,) = llm.memory().devices
            assert held.adapters > 0
            found.append((logits, texts, again))
    assert found[0] == found[1]
    assert len(set(found[0][0])) == len(CHOICES)


class Slots:
    """Two adapters, of 16 and of 32 ranks."""

    slots = 2

    def width(self, slot: int) -> int:
        return 16 * (slot + 1)


def i32(*rows: Any) -> Any:
    return np.array(rows, np.int32)


def test_rows_have_the_adapters_of_their_lists() -> None:
    slots: Any = Slots()
    uses = i32([0, 1, 7], [1, 0, 8], [1, 1, 9])
    parts, starts = rows_with_adapters(i32(1, -1, 0, 1), uses, slots, 48)
    assert starts.tolist() == [0, 2, 2, 3, 5]
    assert parts.tolist() == [[0, 0, 0, 8], [0, 1, 16, 9], [2, 1, 48, 7], [3, 0, 80, 8], [3, 1, 96, 9]]
    nothing = np.empty((0, 3), np.int32)
    assert rows_with_adapters(i32(-1, -1), nothing, slots, 48)[1].tolist() == [0, 0, 0]
    for lists, given in ((i32(2), uses), (i32(-2), uses), (i32(0), nothing), (i32(0), i32([0, 2, 1]))):
        with pytest.raises(ValueError, match="do not exist"):
            rows_with_adapters(lists, given, slots, 48)
    with pytest.raises(ValueError, match="too many ranks"):
        rows_with_adapters(i32(1), uses, slots, 32)
