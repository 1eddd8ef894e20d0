from __future__ import annotations

import pytest
from click.testing import CliRunner

from chaski.cli.layout import age, duration, file_size, filled, section, size, size_in_bytes, table
from chaski.cli.main import chaski_command
from tests.cli.terminals import terminal
from tests.tiers import long_after


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


ROWS = [("NAME", "ID", "ABOUT"), ("a-model-of-a-long-name:latest", "123456", "some words that take room")]


def narrow(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr("chaski.cli.layout.output_columns", lambda: columns)


@pytest.mark.parametrize("columns", [80, 70, 60, 50, 40, 30])
def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    whole = table(ROWS)
    narrow(monkeypatch, columns)
    fitted = table(ROWS)
    assert max(map(len, fitted.splitlines())) <= columns
    assert "".join(fitted.split()) == "".join(whole.split()) or columns < 70
    assert sorted("".join(fitted.split())) == sorted("".join(whole.split()))
    assert all(line == line.rstrip() for line in fitted.splitlines())


def test_a_table_of_many_numbers_continues_below(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("step", *range(8)), ("matmul", *(1000 + number for number in range(8)))]
    assert table(rows, kept=1).count("step") == 1
    narrow(monkeypatch, 40)
    parts = table(rows, kept=1)
    assert max(map(len, parts.splitlines())) <= 40
    assert parts.count("step") == parts.count("matmul") == 2
    assert [int(word) for word in parts.split() if word.startswith("10")] == list(rows[1][1:])


def test_texts_break_for_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a text of several words"
    assert filled(text, "  ") == f"  {text}"
    assert filled(text, "  ", 16) == "  a text of\n  several words"
    narrow(monkeypatch, 16)
    assert filled(text, "  ") == "  a text of\n  several words"


@pytest.mark.parametrize("columns", long_after(1, [60, 80]))
@pytest.mark.parametrize(
    "command",
    long_after(2, ["list", "models qwen2", "info", "models", "show guide --verbose", "show guide --memory"]),
)
def test_commands_fit_the_terminal(command: str, columns: int) -> None:
    with terminal("-m", "chaski", *command.split(), columns=columns, OLLAMA_HOST="") as found:
        assert found.wait_for_end() == 0
        assert max(map(len, found.text.splitlines())) <= columns


def test_piped_tables_have_no_padding() -> None:
    for command in ("info", "list", "models"):
        lines = CliRunner().invoke(chaski_command, [command]).output.splitlines()
        assert all(line == line.rstrip() and " " * 40 not in line.strip() for line in lines), command
