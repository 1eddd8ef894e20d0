"""Configurations of GLM 5.2, which name the layers with an indexer in three ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaski.convert.config import Config
from chaski.convert.families.glm_dsa import metadata
from tests.families import expected

ALL = {"indexer_types": None}


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({"indexer_types": ["full", "full", "shared", "full", "shared"]}, [1, 1, 0, 1, 0]),
        ({**ALL, "index_topk_pattern": "FFSSF"}, [1, 1, 0, 0, 1]),
        ({**ALL, "index_topk_freq": 2}, [1, 1, 0, 1, 0]),
        ({**ALL, "index_topk_freq": 3, "index_skip_topk_offset": 1}, [1, 0, 0, 1, 0]),
        ({**ALL, "index_topk_freq": 1}, None),
    ],
)
def test_layers_with_an_indexer(settings: dict[str, Any], kinds: list[int] | None) -> None:
    config = expected("glm_dsa/shared")["config"] | settings
    config = {key: value for key, value in config.items() if value is not None}
    found = metadata(Config(Path("config.json"), config)).get("attention.indexer.types")
    assert found == (None if kinds is None else [bool(kind) for kind in kinds])
