"""The speed of prompts, which is stored next to blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaski.runner.prefix.kept_speed import SPEED_FILE, read_speed, write_speed
from chaski.runner.prefix.speed import Speed


def test_a_speed_is_kept(tmp_path: Path) -> None:
    assert read_speed(tmp_path) is None
    write_speed(tmp_path, 1234.5678)
    assert read_speed(tmp_path) == 1235
    write_speed(tmp_path, 99)
    assert read_speed(tmp_path) == 99
    assert [path.name for path in tmp_path.iterdir()] == [SPEED_FILE]
    assert (tmp_path / SPEED_FILE).stat().st_mode & 0o077 == 0


def test_a_folder_that_is_gone_keeps_nothing(tmp_path: Path) -> None:
    write_speed(tmp_path / "gone", 5)
    assert read_speed(tmp_path / "gone") is None


def test_every_flipped_bit_makes_the_speed_unknown(tmp_path: Path) -> None:
    write_speed(tmp_path, 81.25)
    path = tmp_path / SPEED_FILE
    whole = path.read_bytes()
    rate, checksum = whole.split()
    for bit in range(8 * (len(rate) + 1 + len(checksum))):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        # A letter of the checksum may be upper or lower case, and the space another one; the numbers are the
        # same.
        assert read_speed(tmp_path) in (None, 81.25)
        if bit < 8 * len(rate):
            assert read_speed(tmp_path) is None


@pytest.mark.parametrize("text", [b"", b"5", b"nan 0", b"x" * 10**6, b"\xff\xfe \x00", b"1 2 3"])
def test_what_is_no_speed_is_unknown(tmp_path: Path, text: bytes) -> None:
    (tmp_path / SPEED_FILE).write_bytes(text)
    assert read_speed(tmp_path) is None


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e300, 1e-300, float("nan"), float("inf")])
def test_no_machine_is_so_quick_or_slow(tmp_path: Path, rate: float) -> None:
    write_speed(tmp_path, rate)
    assert read_speed(tmp_path) is None


def test_the_first_measurement_takes_the_place_of_a_kept_speed() -> None:
    speed = Speed.recalled(1e6)
    assert speed.seconds(1e6) == 1.0
    speed.measure(100, 1.0)
    assert speed.rate == 100
    speed.measure(200, 1.0)
    assert speed.rate == pytest.approx(130)
    assert Speed.recalled(None).rate is None
