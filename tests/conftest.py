"""Shared fixtures: a tiny model, and an environment without the user's settings."""

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
from hypothesis import HealthCheck, settings

from chaski.env import variables
from tests.tiny_llama import write_tiny_llama

# Background jobs may ignore Ctrl-C, and the processes that tests start and interrupt would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long examples take depends on what else the machine does.
settings.register_profile("chaski", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chaski")

# Models in tests are tiny and two files run at once, so a second thread would mostly wait for the first.
# Tests of multi-threaded behaviour set two.
os.environ["CHASKI_THREADS"] = "1"

# Every product uses a random variant of its kernels, as no variant may change a bit of any result. pytest
# prints the seed first; CHASKI_VARIANTS=random:SEED repeats it.
os.environ.setdefault("CHASKI_VARIANTS", f"random:{secrets.randbelow(10**6)}")

# The bundled model's prewritten answers are off, since most tests need its own text. Tests of these answers
# turn them on.
os.environ["CHASKI_ANSWERS"] = "0"

# The only settings of the user that tests see.
SETTINGS = {variable.name for variable in variables()}
SEEN = {"CHASKI_ANSWERS", "CHASKI_ISA", "CHASKI_THREADS", "CHASKI_VARIANTS"}

# The default backend of tests; `cuda-emulated` is the device of tests/cuda, which processes that tests start
# know as well.
BACKEND = os.environ.get("CHASKI_TEST_BACKEND")
if BACKEND == "cuda-emulated":
    emulated = importlib.import_module("tests.cuda.emulated")
    places = [str(Path(__file__).parents[1]), emulated.STARTUP]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    sys.path += places  # workers use the parent's search path

# Thousands of tests are collected and live until the end.
gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the tests themselves from garbage collection."""
    gc.freeze()
    gc.enable()


def pytest_report_header() -> str:
    return f"CHASKI_VARIANTS={os.environ['CHASKI_VARIANTS']}"


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random Llama with a byte-level vocabulary and a chat template."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def keep_out(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keep the user's settings and models away from tests; direct the files of tests to their folder."""
    for name in os.environ.keys() & SETTINGS - SEEN:
        monkeypatch.delenv(name)
    if BACKEND is not None:
        monkeypatch.setenv("CHASKI_BACKEND", BACKEND)
    elif Path("/dev/nvidiactl").exists():  # a GPU would be chosen, but tests are for the processor
        monkeypatch.setenv("CHASKI_BACKEND", "cpu")
    # Keys and histories go into the folder of the tests.
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setenv("OLLAMA_MODELS", str(folder / "no-models"))
    # Prefixes are kept in memory; tests of files enable files.
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "memory")
    # No server listens there, so tests never reach a server of the user.
    monkeypatch.setattr("chaski.remote._USUAL_ADDRESS", "127.0.0.1:1")


@pytest.fixture(scope="session", autouse=True)
def clean_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Do the same for shared fixtures."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_out(monkeypatch, tmp_path_factory.getbasetemp())
        # No test survives a power cut, and some disks take 10 ms for each of thousands of small files.
        # Processes that tests start do wait.
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Begin each test with the same settings, without changing kernels and threads.

    Commands set variables for the processes that they start; these are reset after the test.
    """
    before = set(os.environ)
    keep_out(monkeypatch, tmp_path_factory.getbasetemp())
    yield
    for name in os.environ.keys() & SETTINGS - before:
        del os.environ[name]
