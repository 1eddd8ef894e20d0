"""Predictions with slots for experts on a GPU, and the number of slots to try."""

from __future__ import annotations

import pytest

from chaski.ml.backend import HOST
from chaski.ml.rates import DeviceRates, ProductRates
from chaski.runner.fitting.hot_experts import slot_counts
from chaski.runner.fitting.layout import Layout, Slots
from chaski.runner.fitting.prediction import FileTier, Rates, predict
from chaski.runner.fitting.work import Matrix, Work

NAME = "blk.0.ffn_up_exps.weight"
BYTES = 64 << 20


def work() -> Work:
    return Work([Matrix(NAME, 0, "Q8_0", BYTES, BYTES, True, True)], [], 1, experts=16, used=4, hidden=64)


def rates(reading: float, file: FileTier | None = None) -> Rates:
    processor = DeviceRates({"": ProductRates(reading, 1e18)}, 1e18, 1e18, 0.0)
    gpu = DeviceRates({"": ProductRates(1e12, 1e18)}, 1e18, 1e18, 0.0)
    return Rates({HOST: processor, "cuda:0": gpu}, file)


def seconds(share: float, reading: float = 1e10, file: FileTier | None = None) -> dict[str, float]:
    slots = {NAME: Slots("cuda:0", share)} if share else {}
    layout = Layout({NAME: HOST, "other": "cuda:0"}, [], slots)
    return predict(work(), layout, rates(reading, file), 1, 1, 0)


def test_both_devices_compute_at_the_same_time() -> None:
    read = BYTES * 4 / 16
    assert seconds(0)[HOST] == pytest.approx(read / 1e10)
    hits = 0.25**0.6
    found = seconds(0.25)
    assert found[HOST] == pytest.approx((1 - hits) * read / 1e10)
    assert found["cuda:0"] == 0  # it is done before the processor
    slow_gpu = seconds(0.25, reading=1e14)
    assert slow_gpu["cuda:0"] == pytest.approx(hits * read / 1e12 - slow_gpu[HOST])
    assert found["between"] > seconds(0)["between"]  # rows travel


def test_slots_spare_reads_of_the_file() -> None:
    file = FileTier(0.5, 1e9, is_of_experts=True)
    assert seconds(0.25, file=file)["file"] == pytest.approx((1 - 0.25**0.6) * seconds(0, file=file)["file"])


def test_numbers_of_slots_to_try() -> None:
    assert slot_counts(256, 40, 4) == [31, 25, 22, 18]
    assert slot_counts(8, 40, 4) == []
    assert slot_counts(8, 4, 4) == [7, 6]
