"""The keys of the choice of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating, Groups
from chaski.model.experts import read_router

GIVEN = {"expert_count": 12, "expert_used_count": 3}


def file_with(**keys: Any) -> GGUFFile:
    entries = {f"test.{key}": value for key, value in {**GIVEN, **keys}.items()}
    return GGUFFile(Path("a.gguf"), {"general.architecture": "test", **entries}, {})


@pytest.mark.parametrize(
    ("declared", "gating"),
    [(0, Gating.NEAREST), (1, Gating.SOFTMAX), (2, Gating.SIGMOID), (3, Gating.CHOSEN_SOFTMAX)],
)
def test_the_file_declares_the_function_of_logits(declared: int, gating: Gating) -> None:
    found = read_router(file_with(expert_gating_func=declared), Gating.NEAREST, normalized=True)
    assert found.gating is gating


@pytest.mark.parametrize("declared", [-1, 5, 6])
def test_other_functions_are_refused(declared: int) -> None:
    with pytest.raises(UnsupportedError, match=f"expert_gating_func = {declared}"):
        read_router(file_with(expert_gating_func=declared), Gating.SOFTMAX, normalized=True)


def test_the_file_declares_groups() -> None:
    keys = {"expert_group_count": 4, "expert_group_used_count": 2}
    assert read_router(file_with(**keys), Gating.SIGMOID, normalized=True).groups == Groups(4, 2)
    assert read_router(file_with(), Gating.SIGMOID, normalized=True).groups == Groups()


@pytest.mark.parametrize(("count", "used"), [(5, 2), (4, 5), (12, 4), (6, 1), (-3, 1)])
def test_groups_that_do_not_divide_the_experts_are_an_error(count: int, used: int) -> None:
    keys = {"expert_group_count": count, "expert_group_used_count": used}
    with pytest.raises(ModelError, match="expert_group_count"):
        read_router(file_with(**keys), Gating.SIGMOID, normalized=True)
