"""The static model of kernels against those that an H200 ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu_compiled import Compiled, KernelCode, nvdisasm
from benchmarks.gpu_estimate import Kind, kernels_of
from benchmarks.make_models import SHAPES, write_hollow
from benchmarks.paper_gpu import GPUS, seconds, seconds_of_tail, waves_of
from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import Kernel

H200 = GPUS["h200"]

# Microseconds of products of the 8B shape on an H200, by tokens, type and bytes; docs/gpu.md shows them.
MEASURED = {
    1: {("Q4_K", 66_060_288): 22.8, ("Q6_K", 48_168_960): 16.2, ("Q4_K", 9_437_184): 5.1},
    64: {("Q4_K", 66_060_288): 128.0, ("Q6_K", 48_168_960): 103.0, ("Q4_K", 9_437_184): 32.0},
    512: {("Q4_K", 66_060_288): 651.0, ("Q6_K", 48_168_960): 459.0, ("Q4_K", 9_437_184): 95.0},
}


def launched(name: str, blocks: int, threads: int = 256) -> Kernel:
    return Kernel(Program(name, ()), name, (blocks, 1, 1), threads)


def test_the_longest_of_the_four_times_counts() -> None:
    times = [
        seconds(H200, num_bytes=10**9, instructions=0, products=0, waves=1, once=0),
        seconds(H200, num_bytes=0, instructions=10**9, products=0, waves=1, once=0),
        seconds(H200, num_bytes=0, instructions=0, products=10**12, waves=1, once=0),
        seconds(H200, num_bytes=0, instructions=0, products=0, waves=1, once=10**6),
    ]
    together = seconds(H200, 10**9, 10**9, 10**12, waves=1, once=10**6)
    assert together == max(times)
    assert seconds(H200, 0, 0, 0, waves=1, once=0) == 1.8e-6
    assert seconds(H200, 2 * 10**9, 0, 0, waves=2, once=0) == pytest.approx(1.8e-6 + 4 * (times[0] - 1.8e-6))


def test_the_last_thread_block_takes_time_after_the_others() -> None:
    assert seconds_of_tail(H200, 0, 0) == 600e-9
    assert seconds_of_tail(H200, 64, 1740) == pytest.approx(600e-9 + 1 / H200.clock + 2.5e-6)


@pytest.mark.parametrize(("blocks", "waves"), [(132, 1.0), (133, 2 * 132 / 133), (264, 1.0), (66, 2.0)])
def test_idle_multiprocessors_of_the_last_wave(blocks: int, waves: float) -> None:
    assert waves_of(H200, launched("rows", blocks), 0) == pytest.approx(waves)


def test_blocks_that_go_from_panel_to_panel() -> None:
    # 1,792 panels for 660 blocks: some blocks take three, and each multiprocessor has five blocks.
    assert waves_of(H200, launched("matmul", 660, 160), 1792) == pytest.approx(15 * 132 / 1792)


def test_loops_inside_a_loop() -> None:
    code = KernelCode(32, 0, 0, 100, (range(10, 90), range(20, 30), range(40, 80), range(95, 96)))
    assert code.largest_loop() == range(10, 90)
    assert code.largest_loop(range(10, 90)) == range(40, 80)
    assert code.largest_loop(range(40, 80)) == range(0)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", MEASURED)
def test_products_take_what_was_measured(tokens: int, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="the runtime compiler is not installed")
    if nvdisasm() is None:
        pytest.skip("nvdisasm is not installed")
    path = tmp_path / "hollow.gguf"
    write_hollow(path, SHAPES["llama-3.1-8b"], "Q4_K_M", "hollow")
    sequences, each = (1, tokens) if tokens == 512 else (tokens, 1)
    compiled = Compiled(H200.architecture)
    kinds = [kind for kind in kernels_of(H200, path, sequences, each, 16) if kind.block]
    for key, measured in MEASURED[tokens].items():
        # The last layer multiplies fewer tokens.
        found = max(kind.estimate(H200, compiled) / kind.count for kind in kinds if key_of(kind) == key)
        assert 1e6 * found == pytest.approx(measured, rel=0.21), key


def key_of(kind: Kind) -> tuple[object, int]:
    return dict(kind.kernel.program.defines)["CHASKI_FORMAT"], kind.num_bytes // kind.count
