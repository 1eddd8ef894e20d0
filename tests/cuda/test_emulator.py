"""The emulated device finds faults that a real GPU may hide."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from chaski.errors import ComputationError
from chaski.ml.cuda.device import KernelLaunch, Program, pack
from tests.cuda.emulated.gpu import EmulatedGPU

KERNELS = """
#include "kernel.h"
namespace chaski::CHASKI_ISA {
struct Copying { const int32_t* from; int32_t* to; };
CHASKI_INLINE void copy(const Copying& a) { a.to[threadIdx.x] = a.from[threadIdx.x]; }
CHASKI_KERNEL(behind, Copying) { copy(a); }
CHASKI_KERNEL_AHEAD(early, Copying) { copy(a); device::begin(); }
CHASKI_KERNEL_AHEAD(ahead, Copying) {  // as of weights
    if (threadIdx.x == 63) return;
    const int32_t own = a.from[threadIdx.x];
    device::begin();
    a.to[threadIdx.x] = own;
}
CHASKI_KERNEL(far, Copying) { a.to[1 << 28] = 1; }
CHASKI_KERNEL(stuck, Copying) {
    if (threadIdx.x == 0) a.to[0] = device::from_thread(1, 1);
}
CHASKI_KERNEL(unwritten, Copying) {
    auto* room = reinterpret_cast<int32_t*>(device::shared());
    device::copy_4(room + threadIdx.x, a.from + threadIdx.x);
    device::end_copies();
    if (threadIdx.x < 32) device::wait_copies<0>();
    a.to[threadIdx.x] = room[threadIdx.x];
}
CHASKI_KERNEL(hasty, Copying) {  // reads what another thread may not have written
    auto* room = reinterpret_cast<int32_t*>(device::shared());
    room[threadIdx.x] = a.from[threadIdx.x];
    a.to[threadIdx.x] = room[(threadIdx.x + 1) % blockDim.x];
}
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    path = tmp_path_factory.mktemp("kernels") / "kernels"
    path.with_suffix(".cu").write_text(KERNELS)
    return Program(str(path))


def run(program: Program, name: str, launches: int = 1) -> list[int]:
    """Let a kernel copy the numbers 0 to 63; return the copy."""
    with closing(EmulatedGPU()) as gpu:
        weights, numbers, result = (gpu.allocate(256) for _ in range(3))
        staged = gpu.staging(256)
        staged[:] = np.arange(64, dtype=np.int32).view(np.uint8)
        gpu.upload(weights, staged)
        source = weights if name == "ahead" else numbers
        for _ in range(launches):
            gpu.upload(numbers, staged)
            launch = KernelLaunch(gpu.kernel(program, name), (1, 1, 1), 64, 256, pack("PP", (source, result)))
            gpu.run(gpu.record([launch]))
            gpu.wait()
        gpu.fetch(result, staged)
        gpu.wait()
        return staged.view(np.int32).tolist()


def test_memory_of_earlier_kernels_is_protected_until_a_kernel_begins(program: Program) -> None:
    assert run(program, "behind", launches=2) == list(range(64))
    assert run(program, "ahead", launches=2) == [*range(63), -1]
    with pytest.raises(ComputationError, match="early: it touched memory of earlier kernels before"):
        run(program, "early", launches=2)


def test_memory_that_nobody_has(program: Program) -> None:
    with pytest.raises(ComputationError, match=r"far: it touched memory .* that nobody has"):
        run(program, "far")


def test_threads_that_wait_for_each_other(program: Program) -> None:
    with pytest.raises(ComputationError, match="stuck: its threads wait for each other"):
        run(program, "stuck")


def test_copies_arrive_when_their_thread_waits(program: Program) -> None:
    assert run(program, "unwritten") == [*range(32), *[int(np.uint32(0xA5A5A5A5).view(np.int32))] * 32]


def test_a_missing_barrier(program: Program) -> None:
    assert run(program, "hasty") != [*range(1, 64), 0]
