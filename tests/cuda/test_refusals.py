"""Families with operations that GPUs lack are refused when they are loaded."""

from __future__ import annotations

import pytest

import chaski
from chaski.errors import UnsupportedError
from tests import families
from tests.cuda.emulated import NAME


@pytest.mark.parametrize(
    ("family", "operation"),
    [("deepseek32", "choose_cells"), ("glm_dsa", "choose_cells")],
)
def test_a_missing_operation_is_named(family: str, operation: str) -> None:
    variant = next(name for name in families.VARIANTS if name.startswith(f"{family}/"))
    with pytest.raises(
        UnsupportedError, match=rf"no kernel for {operation}: load the model with the cpu backend"
    ):
        chaski.load(families.converted(variant), backend=NAME, context=128).close()
