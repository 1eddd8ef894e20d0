"""Successive runs on a GPU: tokens that the host has not seen, and results that later runs overwrite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pytest

import chaski
from benchmarks.gpu_estimate import compiled_model
from benchmarks.paper_gpu import GPUS, PaperGPU
from chaski.errors import DeviceError, OutOfMemoryError
from chaski.kvcache import Cache
from chaski.kvcache.batch import Batch
from chaski.ml import open_backend
from chaski.ml.cuda.plan import CUDALaunch, CUDAPlan
from chaski.ml.plan import FromLaunch, Plan
from tests.cuda.devices import BACKENDS
from tests.cuda.emulated import NAME
from tests.ml.next_tokens import TOP, inputs, next_tokens

VOCABULARY = 2000  # logits have more rows than each run copies to the host
on_each = pytest.mark.parametrize("backend", BACKENDS)


@contextmanager
def compiled(backend: str, directory: Path) -> Iterator[Plan]:
    with closing(open_backend(backend)) as opened:
        yield next_tokens(opened, directory, VOCABULARY)


@on_each
def test_a_run_follows_another_whose_results_nobody_has_seen(tmp_path: Path, backend: str) -> None:
    with compiled(backend, tmp_path) as plan:
        expected = []
        given = inputs(7, 11)
        for _ in range(6):
            expected.append(plan.launch(given).rows("top").copy())
            given = inputs(3, int(expected[-1][1].reshape(-1)[TOP]))
        launch = plan.launch(inputs(7, 11))
        found = [launch]
        for _ in range(5):
            launch.drop("logits")
            ids = FromLaunch(np.array([3, 0], np.int32), np.array([1]), launch, "top", np.array([1]), TOP)
            launch = plan.launch({**inputs(0, 0), "ids": ids})
            assert isinstance(launch, CUDALaunch)
            assert launch._wait is not None
            found.append(launch)
        for each, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(each.rows("top"), wanted)


@on_each
def test_what_nobody_dropped_is_there_after_many_runs(tmp_path: Path, backend: str) -> None:
    with compiled(backend, tmp_path) as plan:
        first, dropped = plan.launch(inputs(1, 2, 3)), plan.launch(inputs(4))
        dropped.drop("top")
        expected = plan.launch(inputs(1, 2, 3))
        for output in ("logits", "top"):
            np.testing.assert_array_equal(first.rows(output), expected.rows(output))
        assert dropped.rows("logits").shape == (1, VOCABULARY)


@on_each
def test_an_older_result_is_fetched_where_it_was_overwritten(tmp_path: Path, backend: str) -> None:
    with compiled(backend, tmp_path) as plan:
        first = plan.launch(inputs(7))
        plan.launch(inputs(8))
        ids = FromLaunch(np.array([0], np.int32), np.array([0]), first, "top", np.array([0]), TOP)
        found = plan.launch({**inputs(0), "ids": ids}).rows("logits").copy()
        wanted = plan.launch(inputs(int(first.rows("top").reshape(-1)[TOP]))).rows("logits")
        np.testing.assert_array_equal(found, wanted)


def test_few_recordings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording that has not run for longest makes room, and is made again when it is needed."""
    monkeypatch.setattr("chaski.ml.cuda.plan._MOST_RECORDED", 2)
    with compiled(NAME, tmp_path) as plan:
        assert isinstance(plan, CUDAPlan)
        gpu: Any = plan._gpu
        rows = {count: plan.launch(inputs(*range(count))).rows("logits").copy() for count in (1, 2, 3)}
        assert gpu.num_recorded == 2
        for count in (1, 3, 2, 1):
            np.testing.assert_array_equal(plan.launch(inputs(*range(count))).rows("logits"), rows[count])
        assert gpu.num_recorded == 2
        plan.release()
        assert gpu.num_recorded == 0


def test_recordings_make_room_if_the_memory_runs_out(tmp_path: Path) -> None:
    with compiled(NAME, tmp_path) as plan:
        assert isinstance(plan, CUDAPlan)
        gpu: Any = plan._gpu
        record = gpu.record

        def with_room_for_one(launches: Any) -> object:
            if gpu.num_recorded == 1:
                raise OutOfMemoryError("the GPU has no room for a call of the driver")
            return record(launches)

        gpu.record = with_room_for_one
        wanted = {count: plan.launch(inputs(*range(count))).rows("logits").copy() for count in (1, 4)}
        for count in (1, 4, 1):
            np.testing.assert_array_equal(plan.launch(inputs(*range(count))).rows("logits"), wanted[count])
            assert gpu.num_recorded == 1
        gpu.record = MagicMock(side_effect=OutOfMemoryError("the GPU has no room for a call of the driver"))
        with pytest.raises(DeviceError, match="ran out of memory"):
            plan.launch(inputs(1, 2))
        assert gpu.num_recorded == 0


def test_larger_work_runs_while_kernels_are_compiled(tmp_path: Path) -> None:
    with compiled(NAME, tmp_path) as plan:
        assert isinstance(plan, CUDAPlan)
        wanted = {count: plan.launch(inputs(*range(count))).rows("logits").copy() for count in (1, 3, 8)}
    with compiled(NAME, tmp_path) as plan:
        assert isinstance(plan, CUDAPlan)
        gpu: Any = plan._gpu
        gpu.is_ready, gpu.expect = (lambda programs: False), MagicMock()
        plan.launch(inputs(*range(8))).wait()  # nothing is recorded that it could run instead
        gpu.expect.assert_not_called()
        for count in (1, 3, 1):
            np.testing.assert_array_equal(plan.launch(inputs(*range(count))).rows("logits"), wanted[count])
        assert (gpu.num_recorded, gpu.expect.call_count) == (1, 2)
        gpu.is_ready = lambda programs: True
        for count in (1, 3, 8):
            np.testing.assert_array_equal(plan.launch(inputs(*range(count))).rows("logits"), wanted[count])
        assert gpu.num_recorded == 3


def random_batch(random: np.random.Generator, cache: Cache) -> Batch:
    """Return the next tokens of some of eight sequences; full ones begin anew."""
    parts = []
    for sequence in random.permutation(8)[: random.choice((1, 2, 4, 8))].tolist():
        count = int(random.choice((1, 1, 1, 2, 30)))
        if cache.length(sequence) + count > 96:
            cache.remove(sequence, 0)
        begin = cache.length(sequence)
        parts.append(np.stack([np.arange(begin, begin + count), np.full(count, sequence)]))
    positions, sequences = np.concatenate(parts, axis=1).astype(np.int32)
    ends = np.flatnonzero(np.diff(sequences, append=-1)).astype(np.int32)
    return Batch(np.zeros(len(positions), np.int32), positions, sequences, ends)


@pytest.mark.long
def test_recordings_of_a_server_are_few(tiny_llama: Path) -> None:
    """Recordings of 6,000 steps are counted, bounded, and seldom made again."""
    random = np.random.default_rng(3)
    made: list[int] = []

    def record(gpu: PaperGPU, launches: Any) -> object:
        made.append(len(launches))
        return launches

    with (
        patch.object(PaperGPU, "record", record),
        compiled_model(GPUS["h200"], tiny_llama, 8, 96) as program,
    ):
        plan = program._plan
        assert isinstance(plan, CUDAPlan)
        for _ in range(6000):
            batch = random_batch(random, program._cache)
            program.launch(program.prepare(batch), [1] * len(batch.outputs))
            assert len(plan._recorded) <= 32
        assert plan.recorded_bytes >= 32 * 10240 * max(made)
    assert len(made) < 40


@pytest.mark.long
@on_each
def test_greedy_answers_are_launched_ahead(tiny_llama: Path, backend: str) -> None:
    prompts = [[1, 2, 3], [4, 5], list(range(1, 40))]
    asked: dict[str, Any] = {"num_predict": 20, "temperature": 0, "ignore_eos": True}
    options: Any = {"context": 96, "parallel": 3, "num_batch": 16, "threads": 1, "prompt_cache": "memory"}
    launch, ahead = CUDAPlan.launch, []

    def noted(plan: CUDAPlan, *arguments: Any) -> CUDALaunch:
        newest = plan._newest[-1]() if plan._newest else None
        ahead.append(newest is not None and newest._wait is not None)
        return launch(plan, *arguments)

    with chaski.load(tiny_llama, backend="cpu", **options) as model:
        expected = [each.token_ids for each in model.generate_many(prompts, **asked)]
    with (
        chaski.load(tiny_llama, backend=backend, **options) as model,
        patch.object(CUDAPlan, "launch", noted),
    ):
        found = [each.token_ids for each in model.generate_many(prompts, **asked)]
        assert sum(ahead) > 15
        ahead.clear()
        model.generate(prompts[0], num_predict=10, temperature=1.0, seed=3)
        assert not any(ahead)
    assert found == expected
