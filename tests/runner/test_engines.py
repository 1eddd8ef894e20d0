"""Which engine a model gets, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

import chaski
from chaski.errors import OptionError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.runner import engines
from chaski.runner.engines import LLAMA_CPP, NATIVE, choose_engine, usual_engine
from chaski.runner.worker import Worker
from tests.tiny_llama import write_tiny_llama


@pytest.fixture(params=[False, True], ids=["without", "with"])
def is_installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(engines, "find_spec", lambda name: object() if request.param else None)
    return bool(request.param)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "foreign.gguf", general__architecture="foreign")


def test_ours_for_what_we_have(tiny_llama: Path, is_installed: bool) -> None:
    assert choose_engine(open_gguf(tiny_llama)) == NATIVE


def test_llama_cpp_for_the_rest(foreign: Path, is_installed: bool) -> None:
    if is_installed:
        assert choose_engine(open_gguf(foreign)) == LLAMA_CPP
    else:
        wanted = r"'foreign' is not implemented here.*pip install 'chaski\[llama-cpp\]'"
        with pytest.raises(UnsupportedError, match=wanted):
            choose_engine(open_gguf(foreign))


def test_llama_cpp_where_it_is_asked_for(tiny_llama: Path, is_installed: bool) -> None:
    if is_installed:
        assert choose_engine(open_gguf(tiny_llama), LLAMA_CPP) == LLAMA_CPP
    else:
        with pytest.raises(UnsupportedError, match=r"asked for and not installed; pip install"):
            choose_engine(open_gguf(tiny_llama), LLAMA_CPP)


def test_the_environment(tiny_llama: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_ENGINE", "llama.cpp")
    assert usual_engine("llama") == LLAMA_CPP
    assert usual_engine("llama", NATIVE) == NATIVE, "what is asked for wins"
    monkeypatch.setenv("OLLAMA_NEW_ENGINE", "1")
    assert usual_engine("llama") == usual_engine("foreign") == NATIVE
    with pytest.raises(UnsupportedError, match="not implemented by the native engine"):
        choose_engine(open_gguf(foreign))
    monkeypatch.setenv("CHASKI_ENGINE", "vllm")
    with pytest.raises(OptionError, match="must be native or llama"):
        usual_engine("llama")


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(OptionError, match="option engine is 'vllm'; it must be native or llama"):
        Worker("guide", engine="vllm")


def test_this_process_has_no_llama_cpp(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    with pytest.raises(UnsupportedError, match=r"has a process of its own: use chaski\.Worker"):
        chaski.load(foreign)


def test_workers_say_what_is_missing(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        with Worker(foreign) as worker, pytest.raises(UnsupportedError, match=r"chaski\[llama-cpp\]"):
            worker.info()
    else:
        pytest.skip("xllamacpp is installed")
