"""LoRA adapters on a GPU: the bits of the cpu backend, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.ml.cuda.operations.adapters import rows_with_adapters
from tests.adapted_model import adapted_answers, write_adapted
from tests.cuda.devices import BACKENDS
from tests.cuda.emulated import NAME


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return write_adapted(tmp_path_factory.mktemp("adapters"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_adapters(backend: str, files: Mapping[str, Path]) -> None:
    assert adapted_answers(files, backend=backend) == adapted_answers(files, backend="cpu")


@pytest.mark.slow
def test_each_device_has_what_changes_its_layers(files: Mapping[str, Path]) -> None:
    expected = adapted_answers(files, backend="cpu")
    assert adapted_answers(files, backend=NAME, num_gpu=2) == expected
    with chaski.load(files["model"], adapters=[files["one"]], backend=NAME, num_gpu=2) as llm:
        assert [held.device for held in llm.memory().devices if held.adapters] == ["cpu", "cuda:0"]


class Slots:
    """Two adapters with ranks 16 and 32."""

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
