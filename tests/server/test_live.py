"""The contents of a loaded model's cache, reported while it is in use."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import chaski
from chaski.kvcache import Extent
from chaski.runner.channels.cache_picture import CacheKind, CachePicture, _runs, cache_picture
from tests.own_heads import write_with_heads
from tests.server.running import Running
from tests.tiny_llama import write_tiny_llama

PROMPT = [5, 6, 7, 8] * 12


def check(picture: CachePicture) -> None:
    """Check that every run belongs to an existing sequence, within its tokens and cells."""
    for kind in picture.kinds:
        for sequence, cell, position, count, step in kind.runs.tolist():
            length = picture.slots[sequence].tokens
            assert count > 0
            assert 0 <= cell < kind.cells
            assert 0 <= cell + (count - 1) * step < kind.cells
            assert 0 <= position <= length - (0 if kind.is_state else count)


def test_cells_of_tokens(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    with chaski.load(path, context=128, parallel=2, threads=1) as model:
        empty = cache_picture(model.engine)
        assert [(slot.tokens, slot.is_running) for slot in empty.slots] == [(0, False)] * 2
        assert [(kind.kind, kind.runs.shape) for kind in empty.kinds] == [("all tokens", (0, 5))]
        model.generate(PROMPT, num_beams=2, num_predict=8)
        picture = cache_picture(model.engine)
        check(picture)
        (kind,) = picture.kinds
        cells = [set(kind.held_by(number).tolist()) for number in range(2)]
        assert [len(each) for each in cells] == [slot.tokens for slot in picture.slots]
        assert len(cells[0] & cells[1]) >= 32  # two beams of one prompt


def test_states_and_their_checkpoints(tmp_path: Path) -> None:
    path = write_with_heads("qwen35", tmp_path / "states.gguf")
    with chaski.load(path, context=128, parallel=2, threads=1) as model:
        model.generate(PROMPT, temperature=0, num_predict=4)
        picture = cache_picture(model.engine)
        check(picture)
        states = picture.kinds[-1]
        assert states.is_state
        positions = states.runs[:, 2].tolist()
        assert positions == sorted(positions, reverse=True)
        assert len(positions) >= 2  # the end of the prompt, and of the answer


@dataclass(frozen=True)
class Leaf:
    """The part of a cache that a picture needs."""

    cells: list[list[int]]
    is_state = False

    def held(self, sequence: int, begin: int, end: int) -> list[Extent]:
        return [Extent(7, 7 + end, np.array(self.cells[sequence], np.int32))] if end else []


def read(runs: npt.NDArray[np.int32], sequence: int) -> dict[int, int]:
    """Return the cell at each position."""
    return {
        position + index: cell + index * step
        for owner, cell, position, count, step in runs.tolist()
        for index in range(count)
        if owner == sequence
    }


def runs(cells: list[list[int]]) -> npt.NDArray[np.int32]:
    return _runs(Leaf(cells), [len(each) for each in cells])


def test_sequences_that_grow_together_have_one_run_each() -> None:
    together = runs([list(range(start, 640, 64)) for start in range(64)])
    assert together.tolist() == [[number, number, 7, 10, 64] for number in range(64)]
    assert runs([[4, 5, 6, 20, 22, 24], [9], []]).tolist() == [
        [0, 4, 7, 3, 1],
        [0, 20, 10, 3, 2],
        [1, 9, 7, 1, 1],
    ]


def test_runs_tell_every_cell() -> None:
    rng = random.Random(5)
    for _ in range(300):
        cells = [rng.sample(range(40), rng.randint(0, 12)) for _ in range(3)]
        if rng.random() < 0.5:
            cells = [sorted(each) for each in cells]
        told = runs(cells)
        assert len(told) <= sum(len(each) // 2 + 1 for each in cells)
        for number, held in enumerate(cells):
            assert read(told, number) == dict(enumerate(held, 7))
            kind = CacheKind("all tokens", False, 40, told)
            assert kind.held_by(number).tolist() == held


def test_the_server_tells_it(server: Running) -> None:
    reply = server.get("/api/live/cache")
    assert reply.status == 400
    assert "in memory" in reply.error
    body = {"model": "helper", "prompt": "How do I pull a model?", "stream": False}
    count = server.post("/api/generate", body).json
    for path in ("/api/live/cache", "/api/live/cache?model=helper"):
        told = server.get(path).json
        assert told["model"] == "helper:latest"
        assert len(told["slots"]) == 8
        (used,) = (slot for slot in told["slots"] if slot["tokens"])
        assert used["tokens"] >= count["prompt_eval_count"] + count["eval_count"] - 1
        (kind,) = told["kinds"]
        assert sum(run[3] for run in kind["runs"]) == used["tokens"]
    assert server.get("/api/live/cache?model=nobody").status == 404
