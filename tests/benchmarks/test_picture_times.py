"""The table of `benchmarks.vision`; failures are reported and stop nothing else."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("gguf")

from benchmarks.encoders import ENCODERS, Encoder
from benchmarks.picture_times import Measured, table
from benchmarks.times import OURS, Times
from benchmarks.vision import Files, measure, not_much_slower

FLASH, PLAIN = "libmtmd: flash", "libmtmd: no flash"
TINY = replace(
    ENCODERS["smolvlm"],
    size=64,
    ffn_size=96,
    num_heads=2,
    image_size=64,
    picture=64,
    row_size=32,
    entries={
        **ENCODERS["smolvlm"].entries,
        "vision.preproc_image_size": 64,
        "vision.projector.scale_factor": 2,
    },
)


def measured(**times: tuple[float, float]) -> Measured:
    names = {"chaski": OURS, "flash": FLASH, "plain": PLAIN}
    encode = {names[name]: Times(*both) for name, both in times.items()}
    difference = {name: 0.0123 for name in encode if name != OURS}
    return Measured("e", "Q8_0", 2, 27, 64, encode, encode, difference, {})


def cells(one: Measured) -> list[str]:
    return table([one]).splitlines()[2].strip("| ").split(" | ")


def arguments(**options: object) -> argparse.Namespace:
    settings = {"threads": 1, "repeat": 2, "llama_python": None, "setting": ("flash", "no flash")}
    return argparse.Namespace(**settings | options)


def test_the_best_setting_of_the_peer_counts() -> None:
    one = measured(chaski=(1.0, 2.0), flash=(1.5, 5.0), plain=(1.6, 4.0))
    assert (one.best_peer("wall"), one.best_peer("cpu")) == (FLASH, PLAIN)
    assert (one.ratio("wall"), one.ratio("cpu")) == (1.5, 2.0)
    expected = ["e", "2 of 27", "64", "Q8_0", "1000", "1500", "flash", "**1.50**", "2000", "4000", "**2.00**"]
    assert cells(one) == [*expected, "1000", "1500", "1.23%"]


def test_ours_alone_has_no_ratio() -> None:
    found = " ".join(cells(measured(chaski=(1.0, 2.0)))[4:])
    assert found == "1000 – – – 2000 – – 1000 – –"


def test_rows_of_other_shapes_are_not_compared() -> None:
    one = replace(measured(chaski=(1.0, 2.0), flash=(2.0, 2.0)), difference={FLASH: None})
    assert cells(one)[-1] == "other shape"


def test_the_least_of_each_time_counts() -> None:
    assert Times.best([Times(1.0, 5.0), Times(2.0, 3.0)]) == Times(1.0, 3.0)


def test_settings_that_are_much_slower_are_not_run_again() -> None:
    def taking(seconds: float) -> list[tuple[Times, Times]]:
        return [(Times(0.0, 0.0), Times(1.0, seconds))]

    assert not_much_slower({OURS: [], FLASH: [], PLAIN: []}) == [OURS, FLASH, PLAIN]
    assert not_much_slower({OURS: taking(9.0), FLASH: taking(1.0), PLAIN: taking(1.6)}) == [
        OURS,
        FLASH,
        PLAIN,
    ]
    assert not_much_slower({OURS: taking(9.0), FLASH: taking(1.0), PLAIN: taking(2.0)}) == [OURS, FLASH]


def test_what_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    found = measure("tiny", "F16", Files(tmp_path, TINY), arguments(llama_python="/nowhere/python"))
    assert set(found.encode) == {OURS}
    assert found.rows == 4
    assert set(found.failed) == {FLASH, PLAIN}
    *_, last = table([found]).splitlines()
    assert last.startswith(f"tiny, F16, {PLAIN}: ")
    assert "/nowhere/python" in last


def test_an_encoder_that_we_cannot_read_is_told(tmp_path: Path) -> None:
    found = measure("tiny", "F16", Files(tmp_path, replace(TINY, kind="strange")), arguments())
    assert not found.encode
    assert "strange" in found.failed[OURS]
    assert len(table([found]).splitlines()) == 3, "it has no line in the table"


@pytest.mark.parametrize("name", ENCODERS)
def test_heads_and_pictures_fit(name: str) -> None:
    encoder: Encoder = ENCODERS[name]
    assert encoder.size % encoder.num_heads == 0
    assert encoder.computed <= encoder.num_layers
    assert encoder.picture >= encoder.patch_size
