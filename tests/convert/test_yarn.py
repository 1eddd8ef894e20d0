"""YaRN from a configuration to the frequencies, against transformers (tools/fixtures/make_yarn.py)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.convert.config import Config
from chaski.convert.families import find_family
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.model.rope import read_rope

FILE = Path(__file__).parents[1] / "data" / "yarn.json"


@cache
def cases() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return found


@pytest.mark.parametrize("name", cases())
def test_turns_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case = cases()[name]
    config = Config(tmp_path / "config.json", case["config"])
    family = find_family(config)
    metadata = {f"{family.architecture}.{key}": value for key, value in family.metadata(config).items()}
    metadata |= {"general.architecture": family.architecture}
    write_gguf(tmp_path / "out.gguf", metadata, {"x.weight": (np.zeros((1, 1), np.float32), QuantType.F32)})
    with open_gguf(tmp_path / "out.gguf") as file:
        found = read_rope(file, 64)
    rope = (found.untruncated() if family.architecture == "gpt-oss" else found).rope(neox=True)
    np.testing.assert_allclose(rope.frequencies, case["frequencies"], rtol=2e-6)
    assert rope.magnitude == pytest.approx(case["magnitude"], rel=1e-6)
    assert found.base == case["config"]["rope_parameters"]["rope_theta"]
