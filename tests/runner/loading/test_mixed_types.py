"""Files whose matrices have many types, such as those of importance-weighted mixes, run like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.quant import QuantType
from chaski.runner.loading.engine_choice import native_gap
from tests.mixed_llama import write_mixed_llama
from tests.native.matmul_rule import QUANTIZED_TYPES


@pytest.mark.parametrize("experts", [0, 3])
def test_every_type_in_one_file(experts: int, tmp_path: Path) -> None:
    pair = write_mixed_llama(tmp_path, QUANTIZED_TYPES, layers=-(-len(QUANTIZED_TYPES) // 7), experts=experts)
    with open_gguf(pair.stored) as file:
        assert native_gap(file) is None
        types = {tensor.type for tensor in file.tensors.values()}
        assert types == {*QUANTIZED_TYPES, QuantType.F32}
    tokens = [int(i) for i in np.random.default_rng(4).integers(0, 256, 40)]
    with chaski.load(pair.plain) as model:
        exact = model.logits(tokens)
    with chaski.load(pair.stored) as model:
        found = model.logits(tokens)
        alone = model.logits(tokens[:7])
    np.testing.assert_array_equal(alone, found[:7])
    assert exact.std() > 0.05
    assert np.abs(found - exact).mean() < 0.1 * exact.std()
