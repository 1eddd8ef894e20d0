"""Rates of the processor's kernels are measured again when they no longer hold."""

import time
from pathlib import Path

import pytest

from chaski.formats.quant import QuantType
from chaski.ml.cpu import product_rates
from chaski.ml.rates import DeviceRates, ProductRates


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(product_rates, "_SECONDS", 0.001)
    monkeypatch.setattr(product_rates, "_MOST", product_rates._LEAST)


def measured(*types: QuantType) -> DeviceRates:
    return product_rates.processor_rates(dict.fromkeys(types, 1 << 20), 1)


def let_pass(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.time() + seconds
    monkeypatch.setattr(time, "time", lambda: now)


def test_rates_are_measured_once_for_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    first = measured(QuantType.Q8_0)
    both = measured(QuantType.Q8_0, QuantType.Q4_0)
    assert both.by_type["Q8_0"] == first.by_type["Q8_0"]
    assert all(each.reading > 0 and each.products > 0 for each in both.by_type.values())
    monkeypatch.setattr(product_rates, "_measured", None)
    assert measured(QuantType.Q4_0) == both


@pytest.mark.parametrize(("share", "hold"), [(1.0, 3600), (0.5, 60)])
def test_rates_hold_for_less_time_if_other_programs_used_the_cores(
    share: float, hold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([ProductRates(1.0, 1.0), ProductRates(2.0, 2.0)])

    def fake(
        pool: object, isa: str, type: QuantType, total: int, clock: product_rates._Clock
    ) -> ProductRates:
        clock.best(lambda: time.sleep(0.001))
        clock._computed = share * clock._elapsed
        return next(found)

    monkeypatch.setattr(product_rates, "_measured", fake)
    assert measured(QuantType.Q8_0).by_type["Q8_0"].reading == 1.0
    let_pass(monkeypatch, hold - 5)
    assert measured(QuantType.Q8_0).by_type["Q8_0"].reading == 1.0
    let_pass(monkeypatch, 6)
    assert measured(QuantType.Q8_0).by_type["Q8_0"].reading == 2.0


def test_a_damaged_file_is_ignored() -> None:
    product_rates.rates_file().parent.mkdir(parents=True)
    product_rates.rates_file().write_text("{")
    assert measured(QuantType.Q8_0).by_type
    assert "Q8_0" in product_rates.rates_file().read_text()
