"""The interpreter ends cleanly, whatever daemon threads do; and a model may be closed twice."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import chaski
from tests.tiers import long_after


@pytest.mark.parametrize(
    "what",
    long_after(
        1,
        [
            "generate",
            "at exit",
            "logits",
            "constrained",
            "native",
            "stream",
            "load",
            "exit in a thread",
            "closed",
        ],
    ),
)
def test_daemon_threads_do_not_spoil_the_end(what: str, tiny_llama: Path) -> None:
    command = [sys.executable, "-m", "tests.runner.exits", what, str(tiny_llama)]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "terminate called" not in done.stderr
        assert done.stdout == ("3\n" if what == "at exit" else "")


def test_a_second_close_takes_no_time(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    monkeypatch.delenv("CHASKI_PREFIX_CACHE")  # so that a thread writes its files
    model = chaski.load(tiny_llama, context=64)
    model.generate("the", num_predict=2)
    model.close()
    started = time.monotonic()
    model.close()
    assert time.monotonic() - started < 1


def printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_calls_that_must_not_be_cut_off_end_first_and_no_other_begins() -> None:
    program = """
import threading, time
from chaski.exits import uncut

class Engine:
    def end(self, seconds):
        print("the engine ended", flush=True)

def call():
    with uncut:
        inside.set()
        time.sleep(0.5)
        print("a call ended", flush=True)
    with uncut:
        print("another one began", flush=True)

engine, inside = Engine(), threading.Event()
uncut.end_first(engine)
threading.Thread(target=call, daemon=True).start()
inside.wait()
"""
    assert printed(program) == "the engine ended\na call ended\n"


def test_what_an_engine_does_ends_before_the_interpreter() -> None:
    program = """
import threading, time
from chaski.runner.engine.exclusive import Exclusive

def work():
    inside.set()
    time.sleep(0.5)
    print("ended", flush=True)

exclusive, inside = Exclusive(), threading.Event()
threading.Thread(target=exclusive.run, args=(work,), daemon=True).start()
inside.wait()
"""
    assert printed(program) == "ended\n"
