"""Experts that cannot be read end the requests that need them; the answers of all others stay the same."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.chat.requests import generate_request
from chaski.chat.several import Request
from chaski.errors import ModelError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.ml import CPUOptions, open_backend
from chaski.ml.plan import FailedRowsError
from chaski.runner.engine.batch import PreparedBatch
from chaski.runner.engine.in_flight import InFlight
from tests.backends import about_the_processor
from tests.cuda.emulated import NAME as EMULATED
from tests.ml.sharded import members
from tests.ml.test_expert_store import least_memory
from tests.random_mixes import MODELS, Asked, Mix, Model
from tests.rewriting import all_tensors

pytestmark = about_the_processor

DATA = Path(__file__).parent.parent.parent / "data" / "architectures"
NAMES = ("qwen3moe", "gpt-oss", "qwen35moe", "llama4")
COUNT = 16
PROMPTS = [[int(i) for i in np.random.default_rng(n).integers(5, 60, 1 + n // 5)] for n in range(COUNT)]

Answer = list[int] | ModelError


@pytest.fixture(params=NAMES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model whose file ends with its experts."""
    path = tmp_path / f"{request.param}.gguf"
    with open_gguf(DATA / path.name) as file:
        tensors = all_tensors(file)
        names = sorted(tensors, key=lambda name: "_exps.weight" in name)
        write_gguf(path, file.metadata, {name: tensors[name] for name in names})
    return path


def loaded(path: Path, memory: int | None = None, **settings: Any) -> chaski.LLM:
    return chaski.load(path, context=64, threads=1, parallel=COUNT, expert_memory=memory, **settings)


def answers(model: chaski.LLM, prompts: Sequence[Sequence[int]]) -> list[Answer]:
    """Return the tokens or the error of requests that run together."""
    together = threading.Barrier(len(prompts))

    def answer(prompt: Sequence[int]) -> Answer:
        options = {"num_predict": 1 + 3 * len(prompt), "temperature": 0.0, "ignore_eos": True}
        together.wait()
        try:
            events = list(model._stream(Request(generate_request(list(prompt), "", options), [])))
        except ModelError as error:
            return error
        return [token for event in events if isinstance(event, chaski.Text) for token in event.token_ids]

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(answer, prompts))


def failed(found: Sequence[Answer]) -> list[int]:
    return [number for number, answer in enumerate(found) if isinstance(answer, ModelError)]


def cut_last_expert(path: Path) -> None:
    """Let the file end before the last expert of its last stack."""
    with open_gguf(path) as file:
        stacks = [info for name, info in file.tensors.items() if len(info.shape) == 3 and "_exps." in name]
        last = max(stacks, key=lambda info: info.offset)
        place = last.offset + (last.shape[0] - 1) * last.strides[0]
    os.truncate(path, place)


@contextmanager
def failing_descriptors(path: Path) -> Iterator[None]:
    """Let every read of a file through the descriptors of this process fail with EBADF."""
    numbers = [int(link.name) for link in Path("/proc/self/fd").iterdir() if is_link_to(link, path)]
    assert numbers
    kept = [os.dup(number) for number in numbers]
    unreadable = os.open(path.parent / "written", os.O_WRONLY | os.O_CREAT)
    for number in numbers:
        os.dup2(unreadable, number)
    try:
        yield
    finally:
        for copy, number in zip(kept, numbers, strict=True):
            os.dup2(copy, number)
        for descriptor in (unreadable, *kept):
            os.close(descriptor)


def is_link_to(link: Path, path: Path) -> bool:
    return link.is_symlink() and os.readlink(link) == str(path)


@pytest.fixture
def expected(path: Path) -> list[Answer]:
    """The answers of the model in memory."""
    with loaded(path) as model:
        return answers(model, PROMPTS)


def test_a_shorter_file_ends_exactly_the_requests_that_need_the_rest(
    path: Path, expected: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With two slots for each stack, memory contains the first experts at the beginning, and not the last one.
    monkeypatch.setattr("chaski.ml.cpu.experts._PATIENCE", 20)
    with loaded(path, least_memory(path), prompt_cache=False) as model:
        cut_last_expert(path)
        alone = failed([answers(model, [prompt])[0] for prompt in PROMPTS])
        assert 0 < len(alone) < COUNT
        for _ in range(3):
            found = answers(model, PROMPTS)
            assert failed(found) == alone
            for number, answer in enumerate(found):
                if number not in alone:
                    assert answer == expected[number]
            error = str(found[alone[0]])
            assert f"{path.name} cannot be read: " in error
            assert "has become shorter" in error
        others = [number for number in range(COUNT) if number not in alone]
        chosen = [alone[0], *others]
        found = answers(model, [PROMPTS[number] for number in chosen])
        assert failed(found) == [0]
        assert found[1:] == [expected[number] for number in others]


def ends_exactly_those_that_need_the_rest(path: Path, **settings: Any) -> None:
    """Cut the file of a model that several devices share, and compare its answers with those of one."""
    prompts = PROMPTS[:6]
    with loaded(path, backend="cpu") as model:
        expected = answers(model, prompts)
    with loaded(path, prompt_cache=False, **settings) as model:
        cut_last_expert(path)
        alone = failed([answers(model, [prompt])[0] for prompt in prompts])
        assert 0 < len(alone) < len(prompts)
        found = answers(model, prompts)
    assert failed(found) == alone
    for number, answer in enumerate(found):
        assert number in alone or answer == expected[number]


@pytest.mark.long
@pytest.mark.parametrize("path", ["qwen3moe", "llama4"], indirect=True)
@pytest.mark.parametrize("places", [{"n_cpu_moe": 99}, {"gpu_experts": 1}], ids=str)
def test_a_card_and_the_processor_end_exactly_these_requests_too(
    path: Path, places: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaski.ml.cpu.experts._PATIENCE", 20)
    ends_exactly_those_that_need_the_rest(path, memory=least_memory(path), backend=EMULATED, **places)


@pytest.mark.parametrize("path", ["qwen3moe"], indirect=True)
@pytest.mark.parametrize("split", ["layers", "rows"])
def test_several_machines_end_exactly_these_requests_too(
    path: Path, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaski.ml.cpu.experts._PATIENCE", 20)
    cpu = CPUOptions(threads=1, expert_memory=least_memory(path) // 2)
    monkeypatch.setattr(members, "open_cpu", lambda options: open_backend("cpu", options, cpu))
    with members.running_nodes(tmp_path, 2) as nodes:
        nodes.use(monkeypatch, split, 2)
        ends_exactly_those_that_need_the_rest(path, backend="sharded")


def test_a_failing_disk_ends_all_requests_and_a_working_one_serves_them_again(
    path: Path, expected: list[Answer]
) -> None:
    with loaded(path, least_memory(path)) as model:
        with failing_descriptors(path):
            found = answers(model, PROMPTS)
            assert failed(found) == list(range(COUNT))
            assert all("Bad file descriptor" in str(error) for error in found)
        assert answers(model, PROMPTS) == expected


def test_reads_that_fail_for_a_moment_are_tried_again(path: Path, expected: list[Answer]) -> None:
    with loaded(path, least_memory(path)) as model, ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            with failing_descriptors(path):
                found = pool.submit(answers, model, PROMPTS)
                time.sleep(0.1)
                assert not found.done()
            assert found.result() == expected


class FailingMix(Mix):
    """Random requests of which some end because a row of their batch fails."""

    lost = 0

    def _next(self, asked: Asked) -> Any:
        try:
            return super()._next(asked)
        except ModelError:
            self.lost += 1
            asked.was_left = True
            return None

    def _begin(self, model: chaski.LLM) -> Asked:
        while True:
            try:
                return super()._begin(model)
            except ModelError:
                self.lost += 1


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_failed_rows_change_no_other_answer(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(11)
    end_oldest = InFlight.end_oldest

    def fail_sometimes(in_flight: InFlight) -> PreparedBatch:
        prepared = in_flight.batches[0].prepared
        is_alone = in_flight._prefix_cache.policy is None
        if is_alone or random.random() > 0.03:
            return end_oldest(in_flight)
        in_flight._program.wait()
        raise FailedRowsError("injected", {"tokens": [int(random.integers(len(prepared.batch.tokens)))]})

    monkeypatch.setattr(InFlight, "end_oldest", fail_sometimes)
    mix = FailingMix(model, 11, 16, tmp_path)
    assert mix.run() == [], mix
    assert mix.lost
