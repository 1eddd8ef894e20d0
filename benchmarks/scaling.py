"""Measure the error of the scaling model on the threads of this machine.

    python -m benchmarks.scaling FILE... --threads 1 2 3 4 --rounds 3

Each round measures every number of threads, and predicts it from runs on one thread that were cut for it.
Predictions for more threads than processors assume as many processors. The table shows medians over the
rounds, in milliseconds per batch, and the error of each. Runs that other processes disturbed are repeated,
and so are runs during which memory became faster or slower, as on some virtual machines.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.neighbour import others_seconds
from chaski.cli.bench import Workload, compute
from chaski.cli.bench_plan import traces_of
from chaski.ml import measure_machine
from chaski.ml.machine import physical_cores
from chaski.ml.performance_model import Memory
from chaski.ml.trace import TracedRun
from chaski.runner.llm import LLM
from chaski.runner.plan_report import measure_plan

# The share of its cores that a measurement must get; the part of a core that other processes may use, since
# they also disturb threads on other cores; the allowed change of memory speed; the number of tries.
_UNDISTURBED, _OTHERS, _CHANGE = 0.94, 0.05, 0.1
_TRIES = 12


class Undisturbed:
    """The runs of a model while no other process computed: threads that wait for each other spin."""

    def __init__(self, model: str, workload: Workload, repeat: int) -> None:
        self._traces = traces_of(model, workload.context, workload.batch, self._compute)
        self._workload = workload
        self._repeat = repeat
        self._cores = self._others = self._change = 0.0

    def __call__(self, threads: int, cut_for: int | None) -> Sequence[TracedRun]:
        for _ in range(_TRIES):
            runs = self._traces(threads, cut_for)
            has_its_cores = self._cores >= _UNDISTURBED * min(threads, physical_cores())
            has_its_memory = threads == 1 or self._change <= _CHANGE
            if has_its_cores and has_its_memory and self._others <= _OTHERS:
                break
        else:
            print(
                f"{threads} threads were disturbed {_TRIES} times: {self._others:.2f} cores for others, "
                f"memory changed by {self._change:.0%}"
            )
        return runs

    def _compute(self, model: LLM) -> None:
        own = os.getpid()
        bandwidth = _bandwidth()
        begin, used, others = time.perf_counter(), time.process_time(), others_seconds(own)
        compute(model, self._workload, self._repeat)
        seconds = time.perf_counter() - begin
        self._cores = (time.process_time() - used) / seconds
        self._others = (others_seconds(own) - others) / seconds
        self._change = abs(_bandwidth() / bandwidth - 1)


def _bandwidth() -> float:
    """Return the bytes per second that all processors read together."""
    processors = physical_cores()
    return measure_machine(processors, 1 << 30).rates[processors].bandwidth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3, help="prompts in each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    workload = Workload(arguments.prompt, arguments.generate, 0, arguments.batch)
    counts = sorted({1, *arguments.threads})
    print(f"{'model':<34}{'stage':<10}{'threads':>8}{'measured':>10}{'predicted':>11}{'error':>8}  in rounds")
    for model in arguments.models:
        traces = Undisturbed(model, workload, arguments.repeat)
        rounds = [
            measure_plan(traces, counts, workload.batch, "auto", Memory(), ())
            for _ in range(arguments.rounds)
        ]
        for index, stage in enumerate(rounds[0].stages):
            for count in counts:
                measured = [report.stages[index].measured[count] for report in rounds]
                predicted = [report.stages[index].predicted[count].seconds for report in rounds]
                errors = [p / m - 1 for p, m in zip(predicted, measured, strict=True)]
                print(
                    f"{model.rpartition('/')[2]:<34}{stage.name:<10}{count:>8}{1e3 * median(measured):>10.2f}"
                    f"{1e3 * median(predicted):>11.2f}{median(errors):>8.1%}  "
                    + ", ".join(f"{error:+.1%}" for error in errors),
                    flush=True,
                )


if __name__ == "__main__":
    main()
