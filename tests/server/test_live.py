"""What a model in memory holds, told while it is in use."""

from __future__ import annotations

from pathlib import Path

import chaski
from chaski.runner.service.cache_picture import CachePicture, cache_picture
from tests.own_heads import write_with_heads
from tests.server.running import Running
from tests.tiny_llama import write_tiny_llama

PROMPT = [5, 6, 7, 8] * 12


def check(picture: CachePicture) -> None:
    """Every run is of a sequence that is there, within its tokens and within the cells."""
    for kind in picture.kinds:
        for run in kind.runs:
            length = picture.slots[run.sequence].tokens
            assert run.count > 0
            assert 0 <= run.cell <= kind.cells - run.count
            assert 0 <= run.position <= length - (0 if kind.is_state else run.count)


def test_cells_of_tokens(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    with chaski.load(path, context=128, parallel=2, threads=1) as model:
        empty = cache_picture(model.engine)
        assert [(slot.tokens, slot.is_running) for slot in empty.slots] == [(0, False)] * 2
        assert [(kind.kind, kind.runs) for kind in empty.kinds] == [("all tokens", ())]
        model.generate(PROMPT, num_beams=2, num_predict=8)
        picture = cache_picture(model.engine)
        check(picture)
        (kind,) = picture.kinds
        cells = [
            {run.cell + step for run in kind.runs if run.sequence == number for step in range(run.count)}
            for number in range(2)
        ]
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
        positions = [run.position for run in states.runs]
        assert positions == sorted(positions, reverse=True)
        assert len(positions) >= 2  # the end of the prompt, and of the answer


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
