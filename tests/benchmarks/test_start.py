"""The benchmark of starts: the first byte comes before the end, and failures are reported."""

from __future__ import annotations

import sys

import pytest

from benchmarks.start import measure_start


def test_a_start_is_measured_to_its_first_byte_and_to_its_end() -> None:
    program = "import time; print('x', flush=True); time.sleep(0.3); print('y')"
    start = measure_start([sys.executable, "-c", program])
    assert 0 < start.first < start.end - 0.2
    assert 0 < start.processor < start.end


@pytest.mark.parametrize("program", ["pass", "print('x'); raise SystemExit(3)"])
def test_a_program_that_fails_is_no_result(program: str) -> None:
    with pytest.raises(ChildProcessError, match="ended with"):
        measure_start([sys.executable, "-c", program])
