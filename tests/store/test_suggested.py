"""The list of models to pull that is shipped with the package."""

from __future__ import annotations

import re

from chaski.model.registry import ARCHITECTURES
from chaski.names import ModelName
from chaski.store.suggested import suggested_models

CAPABILITIES = {"completion", "vision", "tools", "thinking", "embedding"}


def test_every_suggestion_is_whole() -> None:
    listed = suggested_models()
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", listed.date)
    assert 8 <= len(listed.models) <= 12
    assert len({ModelName.parse(each.name) for each in listed.models}) == len(listed.models)
    for each in listed.models:
        assert each.family in ARCHITECTURES, each.name
        assert set(each.capabilities) <= CAPABILITIES, each.name
        assert each.capabilities[0] in ("completion", "embedding"), each.name
        assert 0 < each.size < each.memory < 2 * each.size + 500_000_000, each.name
        assert re.fullmatch(r"\d+(\.\d)?[MB]", each.parameters), each.name
        assert all((each.title, each.quantization, each.license)), each.name
        assert 10 < len(each.good_for) < 90, each.name
        assert not each.good_for.endswith("."), each.name


def test_the_smallest_chat_model_comes_first_and_embedders_last() -> None:
    models = suggested_models().models
    chats = [each.size for each in models if "completion" in each.capabilities]
    assert chats == sorted(chats)
    assert "completion" not in models[-1].capabilities
