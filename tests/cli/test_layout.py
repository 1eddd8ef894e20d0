from __future__ import annotations

import pytest

from chaski.cli.layout import age, duration, file_size, section, size, size_in_bytes, table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0µs"),
        (0.0000042, "4.2µs"),
        (0.13007, "130.07ms"),
        (0.9999, "999.9ms"),
        (1, "1s"),
        (1.234567, "1.234567s"),
        (4.5, "4.5s"),
        (62.5, "1m2.5s"),
        (119.9999999, "2m0s"),
        (3600, "1h0m0s"),
        (3725.25, "1h2m5.25s"),
    ],
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (512, "512"),
        (999, "999"),
        (1000, "1K"),
        (2_460_000, "2.46M"),
        (134_515_008, "135M"),
        (999_600_000, "1B"),
        (1_235_814_400, "1.24B"),
        (70_553_706_496, "70.6B"),
        (5e15, "5000T"),
    ],
)
def test_sizes_have_three_digits(count: int, text: str) -> None:
    assert size(count) == text


def test_bytes() -> None:
    assert [size_in_bytes(n) for n in (0, 999, 52_031_488, 802_000_000_000)] == [
        "0 B",
        "999 B",
        "52 MB",
        "802 GB",
    ]


def test_columns_are_four_spaces_apart() -> None:
    assert table([("a", 1, "x"), ("long", 22, "")]) == "    a       1     x\n    long    22"


def test_sections_without_rows_are_not_there() -> None:
    assert section("Empty", iter(())) == ""
    assert section("Full", [("a", 1)]) == "  Full\n    a    1\n"


def test_control_sequences_of_a_file_do_not_reach_the_terminal() -> None:
    assert table([("\x1b[2Jname", "a\nb", "\udc80", "Ġü\u202e")]) == (
        "    \\x1b[2Jname    a\\nb    \\udc80    Ġü\\u202e"
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (808, "808 B"),
        (1000, "1 KB"),
        (1999, "2.0 KB"),
        (4_661_224_676, "4.7 GB"),
        (2 * 10**9, "2 GB"),
        (42_999_999_999, "42 GB"),
        (10**12, "1 TB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_sizes_of_files(count: int, text: str) -> None:
    assert file_size(count) == text


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (0.0001, "Less than a second"),
        (0.0003, "1 second"),
        (0.0166, "59 seconds"),
        (0.0167, "About a minute"),
        (0.84, "50 minutes"),
        (1, "About an hour"),
        (1.5, "2 hours"),
        (47, "47 hours"),
        (48, "2 days"),
        (24 * 13.9, "13 days"),
        (24 * 14, "2 weeks"),
        (24 * 59, "8 weeks"),
        (24 * 60, "2 months"),
        (24 * 700, "23 months"),
        (24 * 800, "2 years"),
    ],
)
def test_ages(hours: float, text: str) -> None:
    assert age(hours * 3600) == f"{text} ago"
