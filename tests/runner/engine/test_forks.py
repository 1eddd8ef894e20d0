"""Forks of a process with a model: immediate clear errors, no deadlocks, and the parent continues."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Runs `child` in a fork during an answer, within ten seconds, and then continues in the parent.
PROGRAM = """
import asyncio, gc, os, signal, sys, threading, time
import chaski

def fails(work):
    try:
        work()
    except chaski.ForkError as error:
        assert "before this process was forked" in str(error), error
    else:
        raise AssertionError("it worked")

def in_fork(child):
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        try:
            child()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        {leave}
    assert os.waitpid(pid, 0)[1] == 0

{body}
"""

MODEL = """
model = chaski.load({path!r}, threads={threads}, context=64, parallel=2)
whole = model.generate([5, 6, 7], seed=1, num_predict=12)
{service}
stream = model.stream([5, 6, 7], seed=1, num_predict=12)
events = [next(stream)]

def child():
    global model, stream
    fails(lambda: model.generate([5], num_predict=1))
    fails(lambda: next(stream))
    fails(lambda: model.logits([5]))
    fails(lambda: model.wait_loaded())
    fails(lambda: model.asynchronous())
    assert model.detokenize(model.tokenize("hello")) == "hello"
    model.close()
    with chaski.load({path!r}, threads={threads}, context=64) as own:
        assert own.generate([5, 6, 7], seed=1, num_predict=12).token_ids == whole.token_ids
    del model, stream
    gc.collect()

in_fork(child)
texts = [event for event in (*events, *stream) if isinstance(event, chaski.Text)]
tokens = [token for text in texts for token in text.token_ids]
assert tuple(tokens) == whole.token_ids
model.close()
print("done")
"""

ASYNCHRONOUS = """
there = model.asynchronous()
assert asyncio.run(there.generate([5, 6, 7], seed=1, num_predict=12)).token_ids == whole.token_ids
"""

LOCKED = """
model = chaski.load({path!r}, threads=2, context=64)
exclusive = model.engine._exclusive
thread = threading.Thread(target=lambda: exclusive.run(lambda: time.sleep(1)))
thread.start()
time.sleep(0.2)
in_fork(lambda: fails(lambda: model.generate([5], num_predict=1)))
thread.join()
there = model.asynchronous()
in_fork(lambda: fails(lambda: asyncio.run(there.generate([5], num_predict=1))))
assert len(model.generate([5], num_predict=2).token_ids) == 2
model.close()
print("done")
"""

WORKER = """
worker = chaski.Worker({path!r}, threads=1, context=64)
whole = worker.generate([5, 6, 7], seed=1, num_predict=12)

def child():
    global worker
    fails(lambda: worker.generate([5], num_predict=1))
    fails(lambda: asyncio.run(worker.asynchronous().generate([5], num_predict=1)))
    worker.close()
    del worker
    gc.collect()

in_fork(child)
assert worker.generate([5, 6, 7], seed=1, num_predict=12).token_ids == whole.token_ids
worker.close()
print("done")
"""

POOL = """
import multiprocessing
model = chaski.load({path!r}, threads=2, context=64)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
assert model.generate([5], num_predict=1).token_ids
print("done")
"""


def run(body: str, leave: str = "os._exit(0)") -> str:
    program = PROGRAM.format(body=body, leave=leave)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    return ran.stderr


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("service", ["", ASYNCHRONOUS], ids=["", "asynchronous"])
def test_a_model_in_a_fork(threads: int, service: str, tiny_llama: Path) -> None:
    run(MODEL.format(path=str(tiny_llama), threads=threads, service=service))


def test_a_fork_that_ends_as_programs_do(tiny_llama: Path) -> None:
    """The fork also runs the interpreter's exit handlers."""
    run(MODEL.format(path=str(tiny_llama), threads=2, service=ASYNCHRONOUS), leave="sys.exit(0)")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(LOCKED, id="locked"),
        pytest.param(WORKER, id="worker", marks=pytest.mark.long),
        pytest.param(POOL, id="pool", marks=pytest.mark.long),
    ],
)
def test_other_forks(body: str, tiny_llama: Path) -> None:
    run(body.format(path=str(tiny_llama)))
