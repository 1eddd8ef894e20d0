"""Layers on several GPUs, or on a GPU and the processor, always give the bits of the cpu."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import OptionError, OutOfMemoryError, UnsupportedError
from chaski.formats.quant import QuantType
from chaski.ml import gpus_of
from tests.cuda.emulated import NAME
from tests.tiny_llama import write_tiny_llama

LAYERS = 8
ROOM = 8 << 30
SIZE: dict[str, Any] = {"context": 128, "parallel": 2, "num_batch": 8, "prompt_cache": False}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    return write_tiny_llama(folder / "tiny.gguf", matrices=QuantType.Q8_0, layers=LAYERS)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Sequence[int]:
    """Return the memory of three GPUs in bytes, which a test may change."""
    found = [ROOM, ROOM, ROOM]
    monkeypatch.setattr("tests.cuda.emulated.gpu.SIZES", found)
    return found


def answers(path: Path, **options: Any) -> tuple[Sequence[str], bytes, Sequence[int]]:
    """Return the devices with weights, and their answers."""
    with chaski.load(path, **SIZE, **options) as llm:
        held = [each.device for each in llm.memory().devices if each.weights]
        logits = llm.logits([7, 9, 30, 4] * 20)
        return held, logits.tobytes(), llm.generate("once upon", num_predict=12, temperature=0).token_ids


@pytest.fixture(scope="module")
def expected(path: Path) -> list[Any]:
    """Return the processor's answers."""
    return list(answers(path, backend="cpu")[1:])


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ({}, ["cuda:0"]),
        ({"num_gpu": LAYERS + 1}, ["cuda:0"]),
        ({"num_gpu": 99, "main_gpu": 2}, ["cuda:2"]),
        ({"num_gpu": LAYERS}, ["cpu", "cuda:0"]),
        ({"num_gpu": 3, "main_gpu": 1}, ["cpu", "cuda:1"]),
        ({"num_gpu": 1}, ["cpu", "cuda:0"]),
        ({"num_gpu": 0}, ["cpu"]),
        ({"tensor_split": [1, 0, 1]}, ["cuda:0", "cuda:2"]),
        ({"tensor_split": [1, 1, 1]}, ["cuda:0", "cuda:1", "cuda:2"]),
        ({"num_gpu": 3, "tensor_split": [1, 1]}, ["cpu", "cuda:0", "cuda:1"]),
        ({"num_gpu": 1, "tensor_split": [1, 1]}, ["cpu", "cuda:1"]),
    ],
)
def test_same_bits_wherever_layers_are(
    path: Path, sizes: Sequence[int], expected: list[Any], options: dict[str, Any], devices: Sequence[str]
) -> None:
    held, *found = answers(path, backend=NAME, **options)
    assert held == devices
    assert found == expected


@pytest.mark.long
def test_as_many_layers_as_fit_are_on_gpus(
    path: Path, sizes: list[int], expected: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Less memory gives fewer layers; without an explicit choice, loading never fails."""
    del sizes[1:]
    with chaski.load(path, **SIZE, backend=NAME) as llm:
        whole = llm.memory().on("cuda:0").total
    held_on_cpu = []
    for share in (1.0, 0.95, 0.8, 0.5, 0.05):
        sizes[0] = int(whole * share)
        with chaski.load(path, **SIZE, backend=NAME) as llm:
            memory = llm.memory()
            assert memory.on("cuda:0").total == memory.on_gpus <= sizes[0]
            held_on_cpu.append(memory.on("cpu").weights)
        assert list(answers(path, backend=NAME)[1:]) == expected
    assert held_on_cpu == sorted(held_on_cpu)
    assert held_on_cpu[0] == 0 < held_on_cpu[1] < held_on_cpu[-1]
    assert "layers of tiny.gguf are on the processor, since cuda:0 has no room for them" in caplog.text


@pytest.mark.long
def test_several_gpus_take_what_one_has_no_room_for(
    path: Path, sizes: list[int], expected: list[Any]
) -> None:
    with chaski.load(path, **SIZE, backend=NAME) as llm:
        whole = llm.memory().on("cuda:0").total
    sizes[:] = [int(whole * 0.8)] * 3
    held, *found = answers(path, backend=NAME)
    assert held == ["cuda:0", "cuda:1", "cuda:2"]
    assert found == expected


@pytest.mark.long
def test_memory_decides_about_the_context_and_the_gpus(tmp_path: Path, sizes: list[int]) -> None:
    """Two GPUs share a model where one has room for a short context, and layers go first where none has."""
    path = write_tiny_llama(tmp_path / "long.gguf", layers=4, llama__context_length=262_144)
    with chaski.load(path, backend=NAME, context=4096, prompt_cache=False) as llm:
        short = llm.memory().on("cuda:0").total
        a_token = llm.memory().cache / 4096

    def place(*rooms: int) -> tuple[list[str], int, str]:
        sizes[:] = rooms
        with chaski.load(path, backend=NAME, prompt_cache=False) as llm:
            held = [each.device for each in llm.memory().devices if each.weights]
            return held, llm.context, llm.context_reason

    room = int(short + 20_000 * a_token)
    held, context, _ = place(room)
    assert held == ["cuda:0"]
    assert 4096 < context < 32_768
    held, longer, _ = place(room, room)
    assert held == ["cuda:0", "cuda:1"]
    assert longer > context
    assert place(int(short + 100_000 * a_token), room)[0] == ["cuda:0"]
    held, context, reason = place(short // 2)
    assert held == ["cpu", "cuda:0"]
    assert 4096 <= context <= 32_768
    assert "the memory" in reason or "memory from the weights" in reason


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{}, {"tensor_split": [1, 3, 2]}, {"num_gpu": 1, "tensor_split": [1, 3, 2]}]
)
def test_a_model_with_fewer_layers_than_gpus(
    tmp_path: Path, sizes: Sequence[int], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType.Q8_0, layers=2)
    monkeypatch.setenv("OLLAMA_SCHED_SPREAD", "1")
    expected = answers(path, backend="cpu")
    found = answers(path, backend=NAME, **options)
    assert found[1:] == expected[1:]
    devices = ["cuda:1", "cuda:2"] if options else ["cuda:0", "cuda:1"]
    assert found[0] == (["cpu", "cuda:2"] if "num_gpu" in options else devices)


def test_what_is_asked_for_and_does_not_fit_is_refused(path: Path, sizes: list[int]) -> None:
    sizes[:] = [40_000, 50_000]
    with pytest.raises(OutOfMemoryError, match=r"GB on cuda:0, but 0.000 GB of memory are available there"):
        chaski.load(path, context=128, backend=NAME, num_gpu=99, tensor_split=[1, 1])
    with pytest.raises(OutOfMemoryError, match=r"GB on cuda:1, but"):
        chaski.load(path, context=128, backend=NAME, num_gpu=2, main_gpu=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"main_gpu": 3}, "main_gpu = 3 must be one of the GPUs here: 0, 1, 2"),
        ({"tensor_split": [1, 1, 1, 1]}, "tensor_split has shares of 4 GPUs; there are 0, 1, 2"),
        ({"tensor_split": [0, 0]}, r"tensor_split = \[0, 0\] must be numbers of at least 0"),
        ({"tensor_split": [1, -1]}, r"tensor_split = \[1, -1\] must be numbers of at least 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    path: Path, sizes: Sequence[int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        chaski.load(path, context=128, backend=NAME, **options)


@pytest.mark.long
def test_the_environment_chooses(
    path: Path, sizes: list[int], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHASKI_BACKEND", NAME)
    for variables, devices in (
        ({"OLLAMA_SCHED_SPREAD": "1"}, ["cuda:0", "cuda:1", "cuda:2"]),
        ({"CHASKI_TENSOR_SPLIT": "0,2,1"}, ["cuda:1", "cuda:2"]),
        ({"CHASKI_MAIN_GPU": "1"}, ["cuda:1"]),
        ({"CHASKI_NUM_GPU": "2"}, ["cpu", "cuda:0"]),
        ({"OLLAMA_GPU_OVERHEAD": str(ROOM)}, ["cpu"]),
    ):
        with monkeypatch.context() as changed:
            for name, value in variables.items():
                changed.setenv(name, value)
            held, *found = answers(path)
        assert (held, found) == (devices, expected), variables


@pytest.mark.slow
def test_several_gpus_share_every_matrix(
    path: Path, sizes: Sequence[int], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of rows need separate kernels, which take long to compile for the emulated device."""
    monkeypatch.setenv("CHASKI_SPLIT", "rows")
    held, *found = answers(path, backend=NAME, tensor_split=[1, 1, 1])
    assert (held, found) == (["cuda:0", "cuda:1", "cuda:2"], expected)


def test_the_gpu_is_chosen_where_there_is_one(
    path: Path, sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is the default; plain attention, which GPUs lack, runs on the processor."""
    monkeypatch.setattr("chaski.runner.loading.devices.usual_backend", lambda: (NAME, gpus_of(NAME)))
    assert answers(path)[0] == ["cuda:0"]
    assert answers(path, num_gpu=0)[0] == ["cpu"]
    assert answers(path, backend="auto", flash_attention=False)[0] == ["cpu"]


def test_what_gpus_cannot_compute_is_the_processors_unless_they_are_asked_for(
    path: Path, sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedError("there is no kernel for it")

    monkeypatch.setattr("chaski.runner.loading.devices.usual_backend", lambda: (NAME, gpus_of(NAME)))
    monkeypatch.setattr("chaski.ml.cuda.backend.CUDABackend.compile", refuse)
    monkeypatch.setenv("CHASKI_BACKEND", "auto")
    assert answers(path)[0] == ["cpu"]
    assert [record.message for record in caplog.records] == [
        "tiny.gguf is computed on the processor: there is no kernel for it"
    ]
    for options in ({"backend": NAME}, {"num_gpu": 99}):
        with pytest.raises(UnsupportedError, match="no kernel"):
            answers(path, **options)


ARCHITECTURES = Path(__file__).parents[1] / "data" / "architectures"
USUAL = ("gpt-oss",)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=() if path.stem in USUAL else pytest.mark.slow)
        for path in sorted(ARCHITECTURES.glob("*.gguf"))
    ],
)
def test_architectures_on_a_gpu_and_the_processor(name: str, sizes: Sequence[int]) -> None:
    """It covers windows, recurrent states, experts and sinks, beyond a full context."""
    path = ARCHITECTURES / f"{name}.gguf"
    options: Any = {"num_predict": 60, "temperature": 0, "ignore_eos": True, "num_keep": 16}
    prompts = [[5, 9, 2, 7, 1, 3, 8, 8, 4, 6], [5, 9, 2, 7, 1, 3, 8, 8, 4, 3, 3]]
    found = []
    for backend, places in (("cpu", {}), (NAME, {"num_gpu": 2}), (NAME, {"tensor_split": [1, 1]})):
        with chaski.load(path, context=64, parallel=2, num_batch=24, backend=backend, **places) as llm:
            logits = llm.logits(prompts[0] * 5).tobytes()
            found.append((logits, [each.token_ids for each in llm.generate_many(prompts, **options)]))
    assert found[0] == found[1] == found[2]
