"""The tables of docs/performance.md, from records with known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gguf")

from benchmarks.engines import Workload
from benchmarks.llama_bench_worker import rates
from benchmarks.machine import Machine
from benchmarks.record import Record, Run
from benchmarks.report import BEGIN, END, ReportError, compared, drawable, page_with, report
from benchmarks.roofline import Costs, Limits
from benchmarks.rows import ROWS, costs

LIMITS = [Limits("avx512", 1, 20e9, 200e9, None, 50e9), Limits("avx512", 2, 30e9, 400e9, None, 100e9)]
# A token costs 1 GB to decode and 10^9 multiply-adds, a quarter of them in the output matrix.
COSTS = Costs(10**9, 750 * 10**6, 250 * 10**6, 0.0, "int8", 0)


def values(prefill: float, decode: float, first_logits: float = 0.5) -> dict[str, float]:
    return {"prefill": prefill, "decode": decode, "first_logits": first_logits, "peak_memory": 1e9}


def record(name: str, *runs: tuple[str, dict[str, float]], cpu: str = "A CPU") -> Record:
    """Make a record of runs in order; each of ours begins a round."""
    number, kept = 0, []
    for engine, measured in runs:
        number += engine == "chaski"
        kept.append(Run(number, engine, 1.0, measured, LIMITS if engine == "chaski" else []))
    machine = Machine(cpu, "avx512", 2)
    date = "2026-01-02 03:04"
    return Record(name, "file", 10**9, Workload(), "f16", machine, "1.0", "peer 2.0", date, COSTS, kept)


FAST = record(
    "type-q4_k_m",
    ("chaski", values(300, 28)),
    ("llama.cpp: plain, flash", values(150, 20)),
    ("llama.cpp: repack, flash", values(100, 25)),
    ("chaski", values(200, 24)),
    ("llama.cpp: plain, flash", values(100, 18)),
    ("llama.cpp: repack, flash", values(90, 24)),
)


def test_the_best_setting_counts_for_each_value_apart() -> None:
    assert FAST.best_peer("prefill") == "llama.cpp: plain, flash"
    assert FAST.best_peer("decode") == "llama.cpp: repack, flash"


def test_ratios_are_of_neighbours() -> None:
    again = record(
        "type-q4_k_m",
        ("chaski", values(100, 10)),
        ("llama.cpp: a", values(50, 10)),
        # The round was interrupted here; we and the machine's limits ran again, four times as fast.
        ("chaski", values(400, 40)),
        ("llama.cpp: b", values(200, 40)),
    )
    assert again.ratio("prefill", "llama.cpp: a") == again.ratio("prefill", "llama.cpp: b") == 2


def test_a_row_is_held_to_its_goals_and_to_the_machine() -> None:
    prefill, decode = compared(ROWS["type-q4_k_m"], FAST)
    assert (prefill.ours, prefill.theirs, prefill.ratio) == (250, 125, 2)
    assert prefill.limit == pytest.approx(400e9 / 750e6)
    assert prefill.share == pytest.approx(250 / (400e9 / 750e6))
    assert prefill.is_met is False, "twice as fast, but 47 % of the limit where 55 % are asked"
    assert decode.limit == pytest.approx(30)
    assert decode.ratio == pytest.approx((28 / 25 + 24 / 24) / 2)
    assert decode.is_met is False, "26 of 30 tokens per second are less than 90 %"


def test_shares_are_of_the_limits_just_before() -> None:
    slow = [Limits("avx512", 2, 15e9, 200e9, None, 50e9)]
    drifting = record("type-q8_0", ("chaski", values(400, 27)), ("chaski", values(100, 10)))
    drifting.runs[1] = Run(2, "chaski", 1.0, values(200, 13.5), slow)
    assert drifting.share("decode") == pytest.approx(0.9)
    assert drifting.share("prefill") == pytest.approx(0.75)
    assert drifting.limit("decode") == pytest.approx(22.5)
    assert drifting.share("peak_memory") is None


def test_lower_is_better_for_seconds() -> None:
    start = record(
        "start",
        ("chaski", values(1, 1, first_logits=0.3)),
        ("llama.cpp: plain", values(1, 1, first_logits=0.4)),
        ("llama.cpp: repack", values(1, 1, first_logits=0.9)),
    )
    first_logits, memory = compared(ROWS["start"], start)
    assert first_logits.peer == "llama.cpp: plain"
    assert first_logits.ratio == pytest.approx(0.75)
    assert first_logits.is_met is True
    assert (memory.ratio, memory.is_met, memory.limit) == (1, True, None)


def test_much_worse_is_worse_in_everything() -> None:
    some = record(
        "type-q8_0",
        ("chaski", values(100, 100)),
        ("llama.cpp: a", values(100, 10)),
        ("llama.cpp: b", values(10, 100)),
        ("llama.cpp: c", values(59, 59)),
        ("llama.cpp: d", values(61, 10)),
    )
    assert some.much_worse(("prefill", "decode"), 0.6) == ["llama.cpp: c"]


def test_the_page_has_a_line_for_each_goal() -> None:
    text = report([{"type-q4_k_m": FAST}])
    assert "### A CPU, avx512\n\nUp to 2 threads; 2026-01-02 (UTC)" in text
    assert "| 2 | 30.0 (30 to 30) | 400 | – | 100 |" in text
    assert "2 threads multiply 2.00 times as fast as one: separate cores." in text
    assert (
        "| Q4_K_M, prompt of 512: prefill, tok/s | 250 | 125 | plain, flash | **2.00** "
        "| ≥ 1.3, 80% | **no** | 533 | 47% | `type-q4_k_m` |" in text
    )


def test_alone_there_is_nothing_to_reach() -> None:
    alone = record("type-q8_0", ("chaski", values(250, 26)))
    alone.peer = None
    (line,) = (
        one for one in report([{"type-q8_0": alone}]).splitlines() if "Q8_0, prompt of 512: prefill" in one
    )
    assert "| 250 | – | – | – | ≥ 2, 80% | – | 533 |" in line


def test_each_machine_has_a_section() -> None:
    other = record("type-q8_0", ("chaski", values(77, 1)), cpu="Another(R) CPU @ 2.50GHz")
    text = report([{"type-q4_k_m": FAST}, {"type-q8_0": other}])
    first, second = text.split("### Another(R) CPU @ 2.50GHz, avx512\n")
    assert "### A CPU, avx512\n" in first
    assert "| 250 |" in first
    assert "| 77.0 |" in second
    assert "| 250 |" not in second
    assert "(plots/another-cpu-2.50ghz-avx512-type.svg)" in second
    with pytest.raises(ReportError, match="A CPU, Another"):
        report([{"type-q4_k_m": FAST, "type-q8_0": other}])
    with pytest.raises(ReportError, match="no records"):
        report([])


def test_the_summary_shows_ratios_side_by_side() -> None:
    other = record("type-q8_0", ("chaski", values(77, 1)), ("llama.cpp: a", values(70, 2)), cpu="Another")
    summary, _ = report([{"type-q4_k_m": FAST}, {"type-q8_0": other}]).split("\n\n", 1)
    assert summary.splitlines() == [
        "| chaski / best peer | A CPU, avx512 | Another, avx512 |",
        "|---|--:|--:|",
        "| Q4_K_M, prompt of 512: prefill | 2.00 | – |",
        "| Q4_K_M, prompt of 512: decode | 1.06 | – |",
        "| Q8_0, prompt of 512: prefill | – | 1.10 |",
        "| Q8_0, prompt of 512: decode | – | 0.50 |",
    ]


def test_each_value_stands_in_one_table() -> None:
    text = report([{"batch-1": FAST, "batch-8": FAST}])
    assert text.count("`batch-1`") == text.count("`batch-8`") == 1


def test_plots_are_shown_where_there_is_enough() -> None:
    few = {"type-q4_k_m": FAST, "batch-1": FAST}
    assert drawable(few) == {"type"}
    assert "plots/a-cpu-avx512-type.svg" in report([few])
    assert "-batch.svg" not in report([few])
    both = few | {"batch-8": FAST}
    assert drawable(both) == {"rows", "type", "batch"}
    for plot in ("rows", "batch"):
        assert f"plots/a-cpu-avx512-{plot}.svg" in report([both])


@pytest.mark.slow
def test_plots_are_drawn(tmp_path: Path) -> None:
    both = {"type-q4_k_m": FAST, "batch-1": FAST, "batch-8": FAST}
    plots = pytest.importorskip("benchmarks.plots", exc_type=ModuleNotFoundError)
    drawn = plots.draw_all(both, drawable(both), tmp_path, "one-")
    assert [path.name for path in drawn] == ["one-rows.svg", "one-type.svg", "one-batch.svg"]
    assert all(path.read_text().count('<g id="patch') > 2 for path in drawn)


def test_only_what_is_between_the_marks_is_replaced() -> None:
    page = f"# Title\n\n{BEGIN}\nold\n{END}\n\nby hand\n"
    assert page_with(page, "new") == f"# Title\n\n{BEGIN}\n\nnew\n\n{END}\n\nby hand\n"
    for broken in ("# Title\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{BEGIN}\n{END}\n"):
        with pytest.raises(ReportError, match="one line"):
            page_with(broken, "new")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    FAST.write(tmp_path / "one.json")
    assert Record.read(tmp_path / "one.json") == FAST
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_older_records_are_read_with_the_names_of_today(tmp_path: Path) -> None:
    values_now = values(10, 20)
    written = record("guesses-60", ("chaski", values_now), ("chaski without guesses", values_now))
    written.write(tmp_path / "guesses-60.json")
    found = Record.read(tmp_path / "guesses-60.json")
    assert (found.name, found.engines()) == ("speculation-60", ["chaski", "chaski without speculation"])
    assert found.name in ROWS


def test_costs_are_those_of_the_real_shape() -> None:
    found = costs(ROWS["type-q4_k_m"])
    assert found.layer_products == 973_078_528
    assert found.head_products == 128256 * 2048
    assert 0.79e9 < found.weight_bytes < 0.81e9
    assert found.history_bytes == 2 * 16 * 8 * (64 * 2 + 4)


def test_rates_of_llama_bench_are_those_of_its_two_tests() -> None:
    tests = [
        {"n_prompt": 512, "n_gen": 0, "samples_ts": [48.5, 50.0]},
        {"n_prompt": 512, "n_gen": 64, "samples_ts": [9.5, 9.0]},
    ]
    assert rates(tests) == {
        "prefill_tokens_per_second": [48.5, 50.0],
        "decode_tokens_per_second": [9.5, 9.0],
    }
