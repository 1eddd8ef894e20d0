"""Exponentials and logarithms of sampling have the same bits on every machine."""

from __future__ import annotations

import hashlib
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from chaski import same_bits
from chaski.sample import transforms


def digest(values: npt.NDArray[Any]) -> str:
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


@pytest.fixture(scope="module")
def numbers() -> npt.NDArray[np.float32]:
    """Return multiples of 2**-16 from 0 to -120, which no machine rounds."""
    return -np.random.default_rng(3).integers(0, 120 << 16, 5000).astype(np.float32) / np.float32(1 << 16)


def test_exponentials(numbers: npt.NDArray[np.float32]) -> None:
    found = same_bits.exponentials(numbers, 0.0)
    exact = np.exp(numbers.astype(np.float64))
    np.testing.assert_allclose(found[exact > 1e-37], exact[exact > 1e-37], rtol=3e-7)
    assert (found[exact < 5e-39] == 0).all()
    assert digest(found) == "f0469518b9562361"


def test_their_sum(numbers: npt.NDArray[np.float32]) -> None:
    parts = same_bits.exponentials(numbers, 0.0).astype(np.float64)
    assert same_bits.exponential_sum(numbers, 0.0) == pytest.approx(parts.sum(), rel=1e-14)
    for count in (1, 15, 16, 17):
        lanes = [parts[:count][lane::16].cumsum()[-1] if lane < count else 0.0 for lane in range(16)]
        for half in (8, 4, 2, 1):
            lanes = [lanes[lane] + lanes[lane + half] for lane in range(half)]
        assert same_bits.exponential_sum(numbers[:count], 0.0) == lanes[0]


def test_logarithms() -> None:
    getcontext().prec = 40
    random = np.random.default_rng(4)
    given = np.ldexp(random.integers(1, 1 << 53, 500).astype(float), random.integers(-600, 600, 500))
    given = np.concatenate([given, 1 + np.arange(-50, 50) * 2.0**-40, [0.5, 1, 2, 4, 1e300]])
    found = same_bits.logarithms(given)
    for number, value in zip(given.tolist(), found.tolist(), strict=True):
        exact = Decimal(number).ln()
        assert abs(Decimal(value) - exact) <= Decimal(1.5 * float(np.spacing(abs(float(exact)))))
        assert same_bits.logarithm(number) == value
    assert digest(found) == "d85d7bfd25f84716"


def test_log_probabilities_and_weights() -> None:
    logits = np.random.default_rng(5).integers(-(20 << 10), 20 << 10, 3001).astype(np.float32) / 1024
    assert digest(transforms.log_probabilities(logits, np.arange(3001))) == "4601087d9d705114"
    assert digest(transforms.softmax(transforms.temperature(logits, 0.75))) == "fe1f31965e8de5fb"
    assert digest(transforms.surprisal_deviations(transforms.softmax(logits))) == "8dd7287d00824c79"
