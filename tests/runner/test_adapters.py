"""Adapters of requests: they change answers like a merged model, and each as if it were alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import chaski
from chaski import _native
from chaski.errors import (
    AdapterError,
    AdapterNotFoundError,
    ModelNotFoundError,
    OptionError,
    OutOfMemoryError,
)
from chaski.formats.adapter import open_adapter
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml.cpu import adapter_slots as slots
from chaski.runner.adapters.adapter_set import AdapterSet
from chaski.runner.loading.files import OpenedModel
from chaski.runner.loading.parts import ModelParts, PartOptions, ReservedModel
from chaski.store.model import find_model
from tests.adapters import adapted_names, metadata, random_adapter
from tests.backends import BACKENDS, USUAL, about_the_processor
from tests.tiny_llama import write_tiny_llama

PROMPT = [262, *range(40, 75)]
CHOICES: Sequence[Any] = (None, "one", "two", [("two", 0.5), ("one", -1.0)], [("one", 0.5)], "few")
ALPHA = 12.0

F32 = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Write a model and three adapters: for all matrices and the head, of another rank, for two modules."""
    folder = tmp_path_factory.mktemp("adapters")
    base = write_tiny_llama(folder / "base.gguf", matrices=QuantType.F32)
    write_tiny_llama(folder / "quantized.gguf", matrices=QuantType.Q8_0)
    with open_gguf(base) as file:
        shapes = {name: file.tensors[name].shape for name in adapted_names(file)}
        shapes["output.weight"] = file.tensors["output.weight"].shape
    few = {name: shape for name, shape in shapes.items() if "attn_v" in name or "ffn_down" in name}
    random_adapter(folder / "one.gguf", shapes, 1, 4, QuantType.F32, ALPHA, size=0.15)
    random_adapter(folder / "two.gguf", shapes, 2, 20, QuantType.F16, ALPHA, size=0.15)
    random_adapter(folder / "few.gguf", few, 3, 1, QuantType.F32, 0.0, size=0.5)
    return {path.stem: path for path in folder.glob("*.gguf")}


def adapters(files: Mapping[str, Path]) -> dict[str, Path]:
    return {name: files[name] for name in ("one", "two", "few")}


def load(files: Mapping[str, Path], model: str = "quantized", **options: Any) -> chaski.LLM:
    return chaski.load(files[model], adapters=adapters(files), **{"threads": 1, **options})


@pytest.fixture(scope="module")
def model(files: Mapping[str, Path]) -> Iterator[chaski.LLM]:
    with load(files, parallel=8, num_batch=32) as loaded:
        yield loaded


def merged(files: Mapping[str, Path], choice: Any, path: Path) -> Path:
    """Write a model with merged adapters: the expected results of requests with the adapters."""
    chosen = [(choice, 1.0)] if isinstance(choice, str) else list(choice or ())
    with open_gguf(files["base"]) as file:
        arrays = {n: dequantize(t.data, t.type, t.shape).copy() for n, t in file.tensors.items()}
        for name, scale in chosen:
            with open_adapter(files[name]) as adapter:
                for tensor, pair in adapter.tensors.items():
                    a, b = (dequantize(info.data, info.type, info.shape) for info in pair)
                    arrays[tensor] += np.float32(scale * pair.scale(adapter.alpha)) * (b @ a)
        tensors = {name: (array, QuantType.F32) for name, array in arrays.items()}
        write_gguf(path, dict(file.metadata), tensors)
    return path


@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=[pytest.mark.long] * (name == "reference")) for name in BACKENDS]
)
def test_adapters_change_logits_as_changed_matrices_would(
    backend: str, files: Mapping[str, Path], tmp_path: Path
) -> None:
    with load(files, "base", backend=backend) as model:
        plain = model.logits(PROMPT)
        for choice in CHOICES:
            with chaski.load(
                merged(files, choice, tmp_path / "m.gguf"), backend=backend, threads=1
            ) as changed:
                expected = changed.logits(PROMPT)
            found = model.logits(PROMPT, adapter=choice)
            assert np.abs(found - expected).max() < 1e-3
            assert choice is None or np.abs(found - plain).max() > 0.5


def test_a_pair_for_joined_rows_changes_each_part(files: Mapping[str, Path], tmp_path: Path) -> None:
    """In llama.cpp's files of some families, one tensor has the rows of three matrices, also in adapters."""
    joined = random_adapter(tmp_path / "j.gguf", {"blk.0.attn_qkv.weight": (128, 64)}, 5, 4, QuantType.F32)
    with open_adapter(joined) as adapter:
        pair = adapter.tensors["blk.0.attn_qkv.weight"]
        a, b = (dequantize(info.data, info.type, info.shape) for info in pair)
    tensors = {}
    for name, rows in (("q", slice(64)), ("k", slice(64, 96)), ("v", slice(96, 128))):
        tensors[f"blk.0.attn_{name}.weight.lora_a"] = a, QuantType.F32
        tensors[f"blk.0.attn_{name}.weight.lora_b"] = b[rows], QuantType.F32
    write_gguf(tmp_path / "apart.gguf", metadata(), tensors)
    with chaski.load(files["quantized"], adapters=[joined, tmp_path / "apart.gguf"], threads=1) as model:
        found = model.logits(PROMPT, adapter="j")
        assert (found == model.logits(PROMPT, adapter="apart")).all()
        assert np.abs(found - model.logits(PROMPT)).max() > 0.01


def test_all_of_a_batch_are_as_alone(model: chaski.LLM) -> None:
    alone = [model.logits(PROMPT, adapter=choice) for choice in CHOICES]
    together: dict[int, F32] = {}

    def ask(index: int) -> None:
        together[index] = model.logits(PROMPT, adapter=CHOICES[index])

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(CHOICES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, expected in enumerate(alone):
        assert (together[index] == expected).all()


def test_a_request_without_adapters_is_what_it_is_without_any_loaded(
    model: chaski.LLM, files: Mapping[str, Path]
) -> None:
    with chaski.load(files["quantized"], threads=1) as plain:
        expected = plain.generate(PROMPT, temperature=0, num_predict=12)
    requests: list[Any] = [None, "one", [("two", 0.5)], None]
    channel = model.asynchronous()

    async def together() -> list[chaski.Answer]:
        asked = [channel.generate(PROMPT, temperature=0, num_predict=12, adapter=each) for each in requests]
        return await asyncio.gather(*asked)

    answers = asyncio.run(together())
    assert answers[0].token_ids == answers[3].token_ids == expected.token_ids
    assert len({tuple(answer.token_ids) for answer in answers}) == 3


@pytest.mark.parametrize("options", [{"num_batch": 5}, {"threads": 2}, {"parallel": 3, "context": 64}])
def test_chunks_threads_and_sizes_change_nothing(
    options: dict[str, Any], model: chaski.LLM, files: Mapping[str, Path]
) -> None:
    with load(files, **options) as other:
        for choice in CHOICES:
            assert (other.logits(PROMPT, adapter=choice) == model.logits(PROMPT, adapter=choice)).all()


def test_instruction_sets_change_nothing(
    model: chaski.LLM, files: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for isa in _native.isa_names():
        monkeypatch.setenv("CHASKI_ISA", isa)
        with load(files) as other:
            for choice in CHOICES[1:4]:
                assert (other.logits(PROMPT, adapter=choice) == model.logits(PROMPT, adapter=choice)).all()


def test_a_prefix_is_shared_with_the_same_adapters_only(files: Mapping[str, Path]) -> None:
    with load(files, parallel=2) as model, load(files, prompt_cache=False) as fresh:
        for choice, cached in (
            ("one", 0),
            ("one", len(PROMPT) - 1),
            (None, 0),
            ([("one", 1.0)], len(PROMPT) - 1),
            ([("one", 0.5)], 0),
            ("two", 0),
            ([("one", 1.0), ("two", 1.0)], 0),
            ([("two", 1.0), ("one", 1.0)], 0),
        ):
            options: dict[str, Any] = {"temperature": 0, "num_predict": 6, "adapter": choice}
            answer, expected = model.generate(PROMPT, **options), fresh.generate(PROMPT, **options)
            assert answer.done.cached_tokens == cached
            assert answer.token_ids == expected.token_ids


def test_proposals_change_nothing(model: chaski.LLM) -> None:
    prompt = [262, *[40, 41, 42, 43] * 6]
    for choice in CHOICES:
        options: dict[str, Any] = {"temperature": 0, "num_predict": 24, "adapter": choice, "ignore_eos": True}
        expected = model.generate(prompt, **options, draft_num_predict=0)
        assert model.generate(prompt, **options).token_ids == expected.token_ids


def test_adapters_come_and_go_while_requests_run(files: Mapping[str, Path], tmp_path: Path) -> None:
    with load(files, parallel=2) as model:
        options: dict[str, Any] = {"temperature": 0, "num_predict": 8, "adapter": "one", "ignore_eos": True}
        expected = model.generate(PROMPT, **options).token_ids
        stream = model.stream(PROMPT, **options)
        events = [next(stream)]
        assert [info.is_used for info in model.adapters()] == [True, False, False]
        assert [info.name for info in model.load_adapter("one", files["two"])] == ["one", "two", "few"]
        other = model.generate(PROMPT, **options).token_ids
        events += stream
        text = [event for event in events if isinstance(event, chaski.Text)]
        assert [token for event in text for token in event.token_ids] == [*expected]
        assert other == model.generate(PROMPT, **{**options, "adapter": "two"}).token_ids != expected
        assert [info.name for info in model.unload_adapter("one")] == ["two", "few"]
        with pytest.raises(AdapterNotFoundError, match=r"'one'.*two, few"):
            model.generate(PROMPT, **options)
        with pytest.raises(AdapterNotFoundError):
            model.unload_adapter("one")
        with pytest.raises(ModelNotFoundError):
            model.load_adapter("one", tmp_path / "none.gguf")


def test_adapters_that_nobody_uses_make_room(files: Mapping[str, Path]) -> None:
    with load(files) as model:
        sizes = {info.name: info.num_bytes for info in model.adapters()}
        found = model.adapter_set
        assert found is not None
        options: dict[str, Any] = {"temperature": 0, "num_predict": 4}
        expected = {name: model.generate(PROMPT, adapter=name, **options).token_ids for name in sizes}
        few = AdapterSet("llama", found._model, found._compile, sizes["one"] + sizes["two"] + 100)
        model.prompts._adapters = few
        for name, path in adapters(files).items():
            few.load(name, path)
        held = [name for name, named in few._named.items() if named.resident is not None]
        assert held == ["two", "few"]
        for name in ("one", "few", "two", "one"):
            assert model.generate(PROMPT, adapter=name, **options).token_ids == expected[name]
        stream = model.stream(PROMPT, adapter=["two", "few"], **options)
        with pytest.raises(OutOfMemoryError, match=r"one\.gguf: the adapter takes"):
            model.generate(PROMPT, adapter="one", **options)
        del stream
        assert model.generate(PROMPT, adapter="one", **options).token_ids == expected["one"]


@pytest.fixture
def nothing_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent the thread that prepares memory for the next adapter."""
    monkeypatch.setattr(slots._ReadyMemory, "prepare", lambda self, num_bytes: None)


@pytest.mark.usefixtures("nothing_ready")
def test_adapters_and_their_plan_are_counted(files: Mapping[str, Path]) -> None:
    with chaski.load(files["quantized"], threads=1) as model:
        before = model.memory()
        sizes = {name: model.load_adapter(name, path)[-1].num_bytes for name, path in adapters(files).items()}
        after = model.memory()
        assert before.adapters == 0
        assert after.adapters == sum(sizes.values())
        assert after.plans > before.plans
        assert after.total == before.total + after.adapters + after.plans - before.plans
        model.unload_adapter("two")
        assert model.memory().adapters == sizes["one"] + sizes["few"]
    parts = ModelParts.of(OpenedModel.of(find_model(files["quantized"])), PartOptions(threads=1))
    reserved = ReservedModel(parts, USUAL)
    needs = reserved.needs_with(list(adapters(files).values()))
    (device,) = (each.device for each in after.devices)
    assert needs.adapters == {device: after.adapters}
    assert needs.adapted == {device: after.plans - before.plans}
    assert needs.total[device] == reserved.needs.total[device] + after.total - before.total
    assert reserved.needs_with([]) == reserved.needs
    reserved.close()


@pytest.mark.usefixtures("nothing_ready")
def test_the_environment_bounds_their_memory(
    files: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(files) as model:
        sizes = {info.name: info.num_bytes for info in model.adapters()}
    monkeypatch.setenv("CHASKI_ADAPTERS_MEMORY", str(sizes["one"] + sizes["two"]))
    with load(files) as model:
        assert model.memory().adapters == sizes["two"] + sizes["few"]
        model.generate(PROMPT, adapter="one", num_predict=1)
        assert model.memory().adapters == sizes["one"] + sizes["few"]
    monkeypatch.setenv("CHASKI_ADAPTERS_MEMORY", "10")
    with pytest.raises(OutOfMemoryError, match="CHASKI_ADAPTERS_MEMORY"):
        load(files)


@about_the_processor
def test_memory_for_the_next_adapter_is_ready(files: Mapping[str, Path], model: chaski.LLM) -> None:
    expected = model.generate(PROMPT, adapter="one", temperature=0, num_predict=6).token_ids
    with load(files) as other:
        held = other.adapter_set
        assert held is not None
        for _ in range(2):
            deadline = time.monotonic() + 10
            while sum(held.held_bytes.values()) == held.num_bytes and time.monotonic() < deadline:
                time.sleep(0.001)
            assert other.memory().adapters == sum(held.held_bytes.values()) > held.num_bytes
            other.load_adapter("same", files["one"])
            found = other.generate(PROMPT, adapter="same", temperature=0, num_predict=6)
            assert found.token_ids == expected


def test_what_does_not_fit_the_model_is_refused_by_name(files: Mapping[str, Path], tmp_path: Path) -> None:
    with load(files) as model:
        for name, shape, said in (
            ("token_embd.weight", (265, 64), "embeddings"),
            ("blk.9.attn_q.weight", (64, 64), r"blk\.9\.attn_q"),
            ("blk.0.attn_q.weight", (64, 32), "has shape"),
            ("blk.0.attn_norm.weight", (1, 64), "norms"),
        ):
            path = random_adapter(tmp_path / "a.gguf", {name: shape}, 1, 2, QuantType.F32)
            with pytest.raises(AdapterError, match=said):
                model.load_adapter("bad", path)
        path = random_adapter(tmp_path / "a.gguf", {"x": (4, 4)}, 1, 2, QuantType.F32, architecture="qwen3")
        with pytest.raises(AdapterError, match="qwen3"):
            model.load_adapter("bad", path)
        wide = random_adapter(tmp_path / "b.gguf", {"blk.0.attn_q.weight": (64, 64)}, 1, 600, QuantType.F32)
        for name in ("wide", "wider"):
            model.load_adapter(name, wide)
        with pytest.raises(OptionError, match="more than 1024 ranks"):
            model.generate(PROMPT, adapter=["wide", "wider"])
        assert [info.name for info in model.adapters()] == ["one", "two", "few", "wide", "wider"]


def test_a_worker_takes_adapters(files: Mapping[str, Path], model: chaski.LLM) -> None:
    options: dict[str, Any] = {"temperature": 0, "num_predict": 6}
    with chaski.Worker(files["quantized"], adapters=[files["one"]], threads=1) as worker:
        assert [info.name for info in worker.adapters()] == ["one"]
        assert [info.rank for info in worker.load_adapter("second", files["two"])] == [4, 20]
        for mine, here in (("one", "one"), ([("second", 0.5), ("one", -1.0)], CHOICES[3])):
            expected = model.generate(PROMPT, adapter=here, **options)
            assert worker.generate(PROMPT, adapter=mine, **options).token_ids == expected.token_ids
        with pytest.raises(AdapterNotFoundError):
            worker.generate(PROMPT, adapter="none", **options)
        assert [info.name for info in worker.unload_adapter("one")] == ["second"]


def test_event_loops_load_adapters(files: Mapping[str, Path]) -> None:
    async def change(model: chaski.LLM) -> list[list[str]]:
        channel = model.asynchronous()
        found = [
            await channel.adapters(),
            await channel.load_adapter("a", files["one"]),
            await channel.unload_adapter("a"),
        ]
        return [[info.name for info in infos] for infos in found]

    with chaski.load(files["quantized"], threads=1) as model:
        assert asyncio.run(change(model)) == [[], ["a"], []]
