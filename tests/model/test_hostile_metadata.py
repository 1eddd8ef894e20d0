"""Files with impossible numbers are refused quickly, without crashes or growth.

Files that divided by zero, ran over buffers or took all memory were most of the advisories of llama.cpp
and Ollama (CVE-2024-39720, CVE-2025-0312, 0315 and 0317, CVE-2026-53923 and others).
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from tests.rewriting import all_tensors
from tests.tiny_llama import write_tiny_llama

DATA = Path(__file__).parents[1] / "data"
FILES = [*sorted((DATA / "architectures").glob("*.gguf")), *(DATA / "embedders").glob("*.gguf")]
NUMBERS = (0, 1, 3, -1, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**40, -(2**31))
FRACTIONS = (0.0, -1.0, 1e30, 1e-30, math.nan, math.inf)


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"llama__block_count": 2**31 - 1}, "llama.block_count is 2147483647; with these tensors it must be"),
        ({"llama__block_count": 0}, "llama.block_count is 0"),
        ({"llama__attention__head_count": 0}, "llama.attention.head_count is 0"),
        ({"llama__attention__head_count": 5}, "make no model|has shape"),
        ({"llama__attention__head_count_kv": 10**6}, "head_count_kv is 1000000"),
        ({"llama__embedding_length": 2**40}, "embedding_length is 1099511627776"),
        ({"llama__attention__key_length": 10**9}, "key_length is 1000000000"),
        ({"llama__context_length": -1}, "context_length is -1"),
        ({"llama__rope__dimension_count": 0}, "dimension_count is 0"),
        ({"llama__rope__dimension_count": 7}, "dimension_count is 7"),
        ({"llama__rope__freq_base": math.nan}, "freq_base is nan; it must be a finite number"),
        ({"llama__rope__freq_base": -2.0}, "freq_base is -2; it must be finite and at least 1e-30"),
        ({"llama__rope__freq_base": 1e-38}, "freq_base is 1e-38; it must be finite"),
        ({"llama__attention__layer_norm_rms_epsilon": math.inf}, "epsilon is inf"),
        ({"tokenizer__ggml__eos_token_id": 10**9}, "eos_token_id is 1000000000"),
    ],
)
def test_numbers_that_cannot_be(tmp_path: Path, metadata: dict[str, Any], text: str) -> None:
    path = write_tiny_llama(tmp_path / "bad.gguf", **metadata)
    started = perf_counter()
    with pytest.raises(chaski.ChaskiError, match=text), chaski.load(path, context=32) as model:
        model.generate("x", num_predict=1)
    assert perf_counter() - started < 5


def test_an_embedder_that_does_not_say_how(tmp_path: Path) -> None:
    with open_gguf(DATA / "embedders" / "nomic-bert.gguf") as file:
        tensors = all_tensors(file)
        write_gguf(tmp_path / "a.gguf", {**file.metadata, "nomic-bert.pooling_type": 0}, tensors)
    with pytest.raises(chaski.ChaskiError, match=r"pooling_type is 0 \(none\) or missing"):
        chaski.load(tmp_path / "a.gguf")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_any_number_anywhere(tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It changes a few numbers of each architecture per seed; all of them were tried once."""
    source = open_gguf(path)
    chosen = random.Random(path.stem)
    tensors = all_tensors(source)
    keys = [key for key in source.metadata if key.startswith(f"{source.architecture}.")]
    for _ in range(6):
        key = chosen.choice(keys)
        write_gguf(
            tmp_path / "x.gguf", dict(source.metadata) | {key: _other(source.metadata[key], chosen)}, tensors
        )
        _try(tmp_path / "x.gguf")


def _other(value: Any, chosen: random.Random) -> Any:
    """Return another value of the same type."""
    if isinstance(value, np.ndarray):
        return chosen.choice([value[:0], value[:1], np.concatenate([value, value]), np.zeros_like(value)])
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return "x"
    return chosen.choice(NUMBERS if isinstance(value, int) else FRACTIONS)


def _try(path: Path) -> None:
    """Load and run the file; accept a normal error or a result."""
    try:
        with np.errstate(all="ignore"), chaski.load(path, context=32, num_batch=16) as model:
            if model.pooling is None:
                list(model.stream([1, 2, 3, 4, 5], num_predict=2, temperature=0))
            else:
                model.embed([[1, 2, 3]])
    except chaski.ChaskiError:
        pass
