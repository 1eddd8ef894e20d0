"""What all tests share: a tiny model, and an environment without the user's own settings."""

from __future__ import annotations

import gc
import importlib
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski.env import variables
from tests.tiny_llama import write_tiny_llama

# Jobs in the background may ignore Ctrl-C, and so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Models of tests are tiny and two files run at once: a second thread would mostly wait for the first one.
# Tests of what threads change ask for two.
os.environ["CHASKI_THREADS"] = "1"

# Every product takes one of the variants of its kernels at random, as none may change a bit of any result.
# The seed is told at the top; CHASKI_VARIANTS=random:SEED repeats it.
os.environ.setdefault("CHASKI_VARIANTS", f"random:{secrets.randbelow(10**6)}")

# The bundled model writes by itself: most tests are about that. Tests of its answers turn them on.
os.environ["CHASKI_ANSWERS"] = "0"

# The user's settings, of which tests see these alone.
SETTINGS = {variable.name for variable in variables()}
SEEN = {"CHASKI_ANSWERS", "CHASKI_ISA", "CHASKI_THREADS", "CHASKI_VARIANTS"}

# What computes models in tests that name nothing else; `cuda-emulated` is the device of tests/cuda, which
# processes that tests start know as well.
BACKEND = os.environ.get("CHASKI_TEST_BACKEND")
if BACKEND == "cuda-emulated":
    emulated = importlib.import_module("tests.cuda.emulated")
    places = [str(Path(__file__).parents[1]), emulated.STARTUP]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    sys.path += places  # workers look where their parent does

# Thousands of tests are collected, and none of them is garbage before the end.
gc.disable()


def pytest_collection_finish() -> None:
    """The collector needs not look at the tests themselves."""
    gc.freeze()
    gc.enable()


def pytest_report_header() -> str:
    return f"CHASKI_VARIANTS={os.environ['CHASKI_VARIANTS']}"


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte-level vocabulary and a chat template."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def keep_out(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let no setting and no model of the user's reach a test; what tests keep goes into their folder."""
    for name in os.environ.keys() & SETTINGS - SEEN:
        monkeypatch.delenv(name)
    if BACKEND is not None:
        monkeypatch.setenv("CHASKI_BACKEND", BACKEND)
    elif Path("/dev/nvidiactl").exists():  # a GPU that would be chosen, where tests are about the processor
        monkeypatch.setenv("CHASKI_BACKEND", "cpu")
    # Keys and histories of tests go where the tests do.
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setenv("OLLAMA_MODELS", str(folder / "no-models"))
    # Prefixes are kept in memory; tests of files ask for them.
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "memory")
    # Nothing listens there: a server of the user's is none of a test's business.
    monkeypatch.setattr("chaski.remote._USUAL_ADDRESS", "127.0.0.1:1")


@pytest.fixture(scope="session", autouse=True)
def clean_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same for what several tests share."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_out(monkeypatch, tmp_path_factory.getbasetemp())
        yield


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Each test begins with the same settings; kernels and threads stay as they were.

    Commands set variables for the processes that they start, and those end with the test.
    """
    before = set(os.environ)
    keep_out(monkeypatch, tmp_path_factory.getbasetemp())
    yield
    for name in os.environ.keys() & SETTINGS - before:
        del os.environ[name]
