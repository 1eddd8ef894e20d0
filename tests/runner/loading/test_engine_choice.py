"""The engine of a model, and the errors if none supports it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.errors import ModelError, OptionError, UnsupportedError
from chaski.formats.gguf import TensorInfo, open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.names import LLAMA_CPP, NATIVE
from chaski.runner.channels.worker.client import Worker
from chaski.runner.loading import engine_choice
from chaski.runner.loading.engine_choice import choose_engine, usual_engine
from tests.rewriting import all_tensors, bytes_as
from tests.tiny_llama import write_tiny_llama


@pytest.fixture(params=[False, True], ids=["without", "with"])
def is_installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: object() if request.param else None)
    return bool(request.param)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: None)


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "foreign.gguf", general__architecture="foreign")


def test_ours_for_what_we_have(tiny_llama: Path, is_installed: bool) -> None:
    assert choose_engine(open_gguf(tiny_llama)) == NATIVE


def test_llama_cpp_for_the_rest(foreign: Path, is_installed: bool) -> None:
    if is_installed:
        assert choose_engine(open_gguf(foreign)) == LLAMA_CPP
    else:
        wanted = r"'foreign' is not implemented here.*pip install 'chaski-llm\[llama-cpp\]'"
        with pytest.raises(UnsupportedError, match=wanted):
            choose_engine(open_gguf(foreign))


def test_llama_cpp_where_it_is_asked_for(tiny_llama: Path, is_installed: bool) -> None:
    if is_installed:
        assert choose_engine(open_gguf(tiny_llama), LLAMA_CPP) == LLAMA_CPP
    else:
        with pytest.raises(UnsupportedError, match=r"asked for and not installed; pip install"):
            choose_engine(open_gguf(tiny_llama), LLAMA_CPP)


GAPS: dict[str, tuple[dict[str, object], str]] = {
    "a scaling": ({"llama__rope__scaling__type": "longrope"}, "scaling.type = 'longrope' is not supported"),
    "heads": ({"llama__attention__head_count": np.array([4, 2])}, "head_count differs from layer to layer"),
    "key heads": ({"llama__attention__head_count_kv": np.array([2, 1])}, "head_count_kv differs from layer"),
    "sizes": ({"llama__feed_forward_length": np.array([96, 64])}, "feed_forward_length differs from layer"),
}


@pytest.mark.parametrize("gap", GAPS)
def test_llama_cpp_for_what_an_architecture_of_ours_lacks(
    gap: str, tmp_path: Path, is_installed: bool
) -> None:
    metadata, reason = GAPS[gap]
    path = _tiny(tmp_path, metadata)
    with open_gguf(path) as file:
        assert usual_engine(file) == LLAMA_CPP
        if is_installed:
            assert choose_engine(file) == LLAMA_CPP
        else:
            with pytest.raises(UnsupportedError, match=rf"{reason}.*pip install 'chaski-llm\[llama-cpp\]'"):
                choose_engine(file)
        assert choose_engine(file, NATIVE) == NATIVE, "what is asked for wins"
        with pytest.raises(UnsupportedError, match=reason):
            chaski.load(path, engine=NATIVE)


def _tiny(folder: Path, metadata: dict[str, object]) -> Path:
    return write_tiny_llama(folder / "a.gguf", None, **metadata)


LAYER = "blk.1.attn_q"
MISFITS: dict[str, tuple[str, tuple[int, ...] | None, str]] = {
    "left over": (f"{LAYER}_gate.weight", (2, 64), f"has no use for tensors {LAYER}_gate.weight"),
    "missing": (f"{LAYER}.weight", None, rf"tensor {LAYER}.weight \(64, 64\) is missing"),
    "of another shape": (f"{LAYER}.weight", (32, 64), rf"tensor {LAYER}.weight has shape \(32, 64\)"),
    "none at all": ("token_embd.weight", None, "tensor token_embd.weight is missing"),
}


def write_misfit(path: Path, tensor: str, shape: tuple[int, ...] | None) -> Path:
    """Write a tiny Llama with another `tensor`, or without it."""
    with open_gguf(write_tiny_llama(path.with_name("whole.gguf"))) as file:
        tensors = all_tensors(file)
        if shape is None:
            del tensors[tensor]
        else:
            zeros = np.zeros(4 * math.prod(shape), np.uint8)
            tensors[tensor] = bytes_as(zeros, QuantType.F32, shape)
        write_gguf(path, file.metadata, tensors)
    return path


@pytest.mark.parametrize("misfit", MISFITS)
def test_llama_cpp_for_tensors_that_an_architecture_of_ours_does_not_have(
    misfit: str, tmp_path: Path, is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be a variant or damaged; the engine that refuses it names the tensor."""
    tensor, shape, reason = MISFITS[misfit]
    path = write_misfit(tmp_path / "a.gguf", tensor, shape)
    with open_gguf(path) as file:
        with monkeypatch.context() as patched:
            patched.setattr(TensorInfo, "data", property(lambda self: pytest.fail("a tensor is read")))
            assert usual_engine(file) == LLAMA_CPP
            if is_installed:
                assert choose_engine(file) == LLAMA_CPP
            else:
                with pytest.raises(ModelError, match=rf"{reason}.*pip install 'chaski-llm\[llama-cpp\]'"):
                    choose_engine(file)
        assert choose_engine(file, NATIVE) == NATIVE
    way_out = r"chaski\.Worker" if is_installed else "pip install"
    with pytest.raises(ModelError, match=f"{reason}.*{way_out}"):
        chaski.load(path)
    with pytest.raises(ModelError, match=reason) as error:
        chaski.load(path, engine=NATIVE)
    assert "llama.cpp" not in str(error.value)


def test_numbers_that_no_model_can_have_are_a_fault_and_no_gap(tmp_path: Path, is_installed: bool) -> None:
    path = write_tiny_llama(tmp_path / "a.gguf", llama__block_count=10**6)
    with open_gguf(path) as file:
        assert choose_engine(file) == usual_engine(file) == NATIVE
    with pytest.raises(ModelError, match=r"block_count is 1000000") as error:
        chaski.load(path)
    assert "llama.cpp" not in str(error.value)


@pytest.mark.parametrize(
    "metadata",
    [
        {"tokenizer__ggml__model": "hybriddna"},
        {"tokenizer__ggml__model": "whitespace"},
        {"tokenizer__ggml__pre": "of tomorrow"},
        {
            "tokenizer__ggml__model": "llama",
            "tokenizer__ggml__precompiled_charsmap": np.zeros(4, np.uint8),
        },
    ],
)
def test_llama_cpp_for_a_tokenizer_that_is_not_known(
    metadata: dict[str, object], tmp_path: Path, is_installed: bool
) -> None:
    with open_gguf(write_tiny_llama(tmp_path / "a.gguf", **metadata)) as file:
        assert choose_engine(file) == (LLAMA_CPP if is_installed else NATIVE)
        assert choose_engine(file, text=False) == NATIVE


def test_the_same_number_for_every_layer_is_one(tmp_path: Path, tiny_llama: Path) -> None:
    path = write_tiny_llama(
        tmp_path / "a.gguf",
        llama__attention__head_count=np.array([4, 4]),
        llama__attention__head_count_kv=np.array([2, 2]),
        llama__feed_forward_length=np.array([96, 96]),
    )
    with chaski.load(path) as model, chaski.load(tiny_llama) as other:
        np.testing.assert_array_equal(model.logits([1, 2, 3]), other.logits([1, 2, 3]))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general__type": "adapter"}, "this is a LoRA adapter.* adapters="),
        ({"adapter__type": "lora"}, "this is a LoRA adapter.* adapters="),
        ({"general__type": "imatrix"}, "this is an importance matrix"),
        ({"general__type": "mmproj"}, "this is a projector .* projector="),
        ({"general__architecture": "clip"}, "this is a projector .* projector="),
        ({"general__architecture": "controlvector"}, "this is a control vector"),
    ],
)
def test_what_is_no_model_is_called_by_its_name(
    metadata: dict[str, object], reason: str, tmp_path: Path, is_installed: bool
) -> None:
    path = write_tiny_llama(tmp_path / "a.gguf", **metadata)
    with pytest.raises(UnsupportedError, match=reason):
        choose_engine(open_gguf(path))
    with pytest.raises(UnsupportedError, match=reason):
        chaski.load(path)


def test_a_vocabulary_is_no_model(tmp_path: Path) -> None:
    with open_gguf(write_tiny_llama(tmp_path / "a.gguf")) as file:
        write_gguf(tmp_path / "vocabulary.gguf", file.metadata, {})
    with pytest.raises(UnsupportedError, match="a vocabulary without a model: it has no tensors"):
        chaski.load(tmp_path / "vocabulary.gguf")


def test_the_environment(tiny_llama: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_ENGINE", "llama.cpp")
    ours, theirs = open_gguf(tiny_llama), open_gguf(foreign)
    assert usual_engine(ours) == LLAMA_CPP
    assert usual_engine(ours, NATIVE) == NATIVE, "what is asked for wins"
    monkeypatch.setenv("CHASKI_ENGINE", "native")
    assert usual_engine(ours) == usual_engine(theirs) == NATIVE
    with pytest.raises(UnsupportedError, match="not implemented by the native engine"):
        choose_engine(open_gguf(foreign))
    monkeypatch.setenv("CHASKI_ENGINE", "vllm")
    with pytest.raises(OptionError, match="must be native or llama"):
        usual_engine(ours)


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(OptionError, match="option engine is 'vllm'; it must be native or llama"):
        Worker("guide", engine="vllm")


def test_this_process_has_no_llama_cpp(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: object())
    with pytest.raises(UnsupportedError, match=r"in a separate process: use chaski\.Worker"):
        chaski.load(foreign)


def test_workers_say_what_is_missing(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        with Worker(foreign) as worker, pytest.raises(UnsupportedError, match=r"chaski-llm\[llama-cpp\]"):
            worker.info()
    else:
        pytest.skip("xllamacpp is installed")
