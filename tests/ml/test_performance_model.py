"""The scaling model, on invented runs whose times can be added by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from chaski.ml.cpu.thread_rates import measure_machine
from chaski.ml.performance_model import Batch, Machine, Memory, ThreadRates, predict
from chaski.ml.trace import TracedRun, TracedStep

# Seconds per piece, in whole microseconds.
US = 1e-6
IDEAL = Machine(2, {n: ThreadRates(n * 1e9, float(n), 0.0, 0.0) for n in (1, 2)}, 0.0)
SATURATED = Machine(2, {n: ThreadRates(1e9, float(n), 0.0, 0.0) for n in (1, 2)}, 0.0)


def batch(
    pieces: Sequence[tuple[int, int, float]],
    plan: Sequence[TracedStep] = (TracedStep("step"),) * 9,
    before: float = 0.0,
    after: float = 0.0,
) -> Batch:
    """Return a batch of pieces with one item each: phase, step, microseconds."""
    phases, steps, times = (np.array(column) for column in zip(*pieces, strict=True))
    counts = np.bincount(steps)
    return Batch(plan, {"tokens": 10}, steps, phases, 1 / counts[steps], times * US, before, after)


def seconds(of: Batch, threads: int, machine: Machine = IDEAL, **assumed: object) -> float:
    return predict(of, machine, threads, **assumed).seconds


def test_one_thread_takes_the_sum_with_all_gaps() -> None:
    machine = Machine(1, {1: ThreadRates(1e9, 1.0, 1 * US, 5 * US)}, 0.0)
    of = batch([(0, 0, 10), (0, 0, 20), (2, 1, 30)], before=100 * US, after=200 * US)
    found = predict(of, machine, 1)
    # A claim between the first two, and a barrier after each phase.
    assert found.seconds == pytest.approx((100 + 10 + 1 + 20 + 5 + 30 + 5 + 200) * US)
    assert found.path.on_path.all()
    assert found.path.waiting == pytest.approx((1 + 5 + 5) * US)


def test_pieces_go_to_whoever_is_free_and_all_wait_for_the_last() -> None:
    of = batch([(0, 0, 40), (0, 0, 10), (0, 0, 20), (0, 0, 5), (1, 1, 7)])
    found = predict(of, IDEAL, 2)
    assert found.lanes.tolist()[:4] == [0, 1, 1, 1]
    assert found.started[:4] == pytest.approx(np.array([0, 0, 10, 30]) * US)
    assert found.seconds == pytest.approx(47 * US)
    assert found.path.on_path.tolist() == [True, False, False, False, True]
    assert seconds(of, 4) == pytest.approx(47 * US)


def test_others_begin_while_the_caller_is_busy() -> None:
    of = batch([(0, 0, 10)] * 4, before=25 * US, after=3 * US)
    found = predict(of, IDEAL, 2)
    # The other thread computes two and begins the third before the caller joins.
    assert found.lanes.tolist() == [1, 1, 1, 0]
    assert found.seconds == pytest.approx((35 + 3) * US)
    assert seconds(of, 1) == pytest.approx((25 + 40 + 3) * US)


def test_memory_that_gives_no_more_holds_up_what_reads() -> None:
    plan = [TracedStep("matmul", weight_bytes=80_000, rows="tokens"), TracedStep("norm")]
    of = batch([(0, 0, 60), (0, 0, 60), (1, 1, 8), (1, 1, 8)], plan)
    # 40 KB at 1 GB/s take 40 of 60 microseconds.
    assert seconds(of, 2) == pytest.approx(68 * US)
    found = predict(of, SATURATED, 2)
    assert found.reading[0] == pytest.approx(80 * US)
    assert found.computing[0] == pytest.approx(20 * US)
    assert found.seconds == pytest.approx((20 + 80 + 8) * US)


def test_a_phase_of_one_piece_has_all_the_bandwidth() -> None:
    plan = [TracedStep("matmul", weight_bytes=40_000, rows="tokens")]
    assert seconds(batch([(0, 0, 60)], plan), 2, SATURATED) == pytest.approx(60 * US)


def test_activations_come_from_other_cores() -> None:
    plan = [TracedStep("matmul", rows="tokens", divided_bytes=400, shared_bytes=100)]
    machine = Machine(2, IDEAL.rates, 1e-9)
    of = batch([(0, 0, 50)] * 4, plan)
    found = predict(of, machine, 2)
    # Half of 10 rows' 4,000 bytes in four pieces, and half of 1,000 bytes once per thread.
    assert found.transferring == pytest.approx(np.array([1.0, 1.0, 0.5, 0.5]) * US)
    assert found.seconds == pytest.approx(101.5 * US)
    assert seconds(of, 1, machine) == pytest.approx(200 * US)


def test_threads_of_one_core_share_its_arithmetic() -> None:
    machine = Machine(2, {1: IDEAL.rates[1], 2: ThreadRates(2e9, 1.25, 0.0, 0.0)}, 0.0)
    assert seconds(batch([(0, 0, 50)] * 2), 2, machine) == pytest.approx(80 * US)


def test_more_threads_than_processors_compute_no_faster() -> None:
    of = batch([(0, 0, 10)] * 8)
    crowded = Machine(2, IDEAL.rates, 0.0, {8: 7 * US})
    found = predict(of, crowded, 8, processors=2)
    assert found.seconds == pytest.approx(47 * US)
    assert found.path.waiting == pytest.approx(7 * US)
    assert seconds(of, 2, crowded) == pytest.approx(40 * US)
    assert seconds(of, 8) == pytest.approx(10 * US)


def test_rates_beyond_what_was_measured() -> None:
    machine = Machine(
        4,
        {
            1: ThreadRates(10e9, 1.0, 1e-7, 1e-7),
            2: ThreadRates(18e9, 2.0, 1e-7, 4e-7),
            4: ThreadRates(30e9, 3.6, 2e-7, 6e-7),
        },
        0.0,
    )
    assert machine.at(3, Memory()).bandwidth == 24e9
    grown = machine.at(8, Memory())
    assert (grown.bandwidth, grown.claim) == (60e9, 2e-7)
    assert grown.speed == pytest.approx(7.2)
    assert grown.barrier == pytest.approx(10e-7)
    assert machine.at(8, Memory(50e9)).bandwidth == 50e9
    assert machine.at(8, Memory(20e9, nodes=2)).bandwidth == 40e9
    assert machine.at(4, Memory(20e9)).bandwidth == 30e9  # as measured
    two = Machine(2, {n: machine.rates[n] for n in (1, 2)}, 0.0)
    assert two.at(8, Memory()).barrier == pytest.approx(10e-7)  # 1e-7 more with each
    alone = Machine(1, {1: machine.rates[1]}, 0.0)
    assert alone.at(8, Memory()).barrier == 1e-7


def test_what_disturbs_one_of_two_measurements_does_not_count_but_memory_may_differ() -> None:
    slow = Machine(1, {1: ThreadRates(1e9, 0.5, 2e-7, 9e-7)}, 3e-11, {2: 5e-4})
    fast = Machine(1, {1: ThreadRates(2e9, 0.4, 3e-7, 1e-7)}, 4e-11, {2: 4e-4})
    better = slow.better_of(fast)
    assert better.rates == {1: ThreadRates(2e9, 0.5, 2e-7, 1e-7)}
    assert better.transfer == pytest.approx(3.5e-11)
    assert better.crowded == {2: 4e-4}
    between = slow.between(fast)
    assert between.rates == {1: ThreadRates(1.5e9, 0.5, 2e-7, 1e-7)}
    assert between.crowded == better.crowded


def test_what_a_step_reads() -> None:
    sizes = {"tokens": 3, "history": 100}
    assert TracedStep("matmul", weight_bytes=1000, rows="tokens").bytes_read(sizes) == 1000
    table = TracedStep("embedding", weight_bytes=1000, row_share=1 / 50, rows="tokens")
    assert table.bytes_read(sizes) == pytest.approx(60)
    experts = TracedStep("expert_matmul", weight_bytes=1000, row_share=0.25, rows="tokens")
    assert experts.bytes_read(sizes) == pytest.approx(750)
    assert experts.bytes_read({"tokens": 8}) == 1000
    attention = TracedStep("attention", rows="tokens", cells="history", cell_bytes=64)
    assert attention.bytes_read(sizes) == 6400


def run(*pieces: tuple[int, ...], launched: int = 0) -> TracedRun:
    return TracedRun((TracedStep("a"), TracedStep("b")), {}, launched, launched + 50, 900, np.array(pieces))


def test_a_batch_is_the_middling_one_of_runs_that_were_cut_alike() -> None:
    runs = [
        run((0, 0, 0, 0, 3, 100, 130), (0, 0, 0, 3, 4, 131, 140), (0, 1, 1, 0, 1, 150, 150 + took))
        for took in (20, 700, 30)
    ]
    other = run((0, 0, 0, 0, 4, 100, 10_000), (0, 1, 1, 0, 1, 20_000, 20_001))
    found = Batch.of([other, *runs], after=1.0)
    assert found.steps.tolist() == [0, 0, 1]
    assert found.phases.tolist() == [0, 0, 1]
    assert found.items.tolist() == [0.75, 0.25, 1.0]
    assert found.seconds == pytest.approx(np.array([30, 9, 30]) * 1e-9)
    assert found.before == pytest.approx(50e-9)
    assert found.after == 1.0


def test_pieces_of_a_batch_add_up_to_a_run_of_middling_length() -> None:
    """Each piece is disturbed once in every run except the last: medians of pieces would not show it."""
    runs = [
        run(
            *((0, step, step, 0, 1, 100 * step, 100 * step + (40 if step == late else 10)) for step in (0, 1))
        )
        for late in (0, 1, 0, 1, 2)
    ]
    found = Batch.of([*runs, runs[0]])
    assert found.seconds.sum() == pytest.approx(50e-9)


def test_runs_of_several_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="runs of one thread"):
        Batch.of([run((0, 0, 0, 0, 3, 100, 130), (1, 0, 0, 3, 4, 100, 140))])


@pytest.mark.long
def test_this_machine() -> None:
    machine = measure_machine(2, 1 << 20, crowds=[3])
    assert 0 <= machine.crowded[3] < 1
    assert sorted(machine.rates) == [1, 2]
    assert machine.rates[1].speed == 1.0
    for rates in machine.rates.values():
        assert rates.bandwidth > 1e8
        assert 0 <= rates.claim < 1e-3
        assert 0 < rates.barrier < 1e-3
    assert 0 <= machine.transfer < 1e-6
