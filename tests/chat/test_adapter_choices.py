"""The option `adapter`: one name, or a list of names and scales."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.chat.adapter_choices import MAX_ADAPTERS, AdapterChoice
from chaski.chat.options import parse_options
from chaski.errors import OptionError


@pytest.mark.parametrize(
    ("given", "choices"),
    [
        (None, ()),
        ("a", (AdapterChoice("a"),)),
        (AdapterChoice("a", 2.0), (AdapterChoice("a", 2.0),)),
        (["a", ("b", 0.5), ["c", -1]], (AdapterChoice("a"), AdapterChoice("b", 0.5), AdapterChoice("c", -1))),
        ([], ()),
    ],
)
def test_adapters_come_in_the_order_of_the_request(given: Any, choices: tuple[AdapterChoice, ...]) -> None:
    assert parse_options({"adapter": given})[0].adapter == choices


@pytest.mark.parametrize(
    "given",
    [
        5,
        "",
        [""],
        [["a"]],
        [["a", "b"]],
        [["a", float("nan")]],
        [["a", True]],
        ["a", ["a", 2.0]],
        {"a": 1.0},
        [f"{number}" for number in range(MAX_ADAPTERS + 1)],
    ],
)
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match="adapter"):
        parse_options({"adapter": given})
