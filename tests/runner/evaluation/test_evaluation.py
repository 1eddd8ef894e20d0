"""Scores of a text against their definition in NumPy, and what an interruption leaves."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import chaski
from chaski.errors import OptionError, StoreError
from chaski.formats.quant import QuantType
from chaski.runner.evaluation.chunks import Chunks
from chaski.runner.evaluation.evaluation import evaluate
from chaski.runner.evaluation.records import Records, Subject, described, stored_evaluations
from chaski.runner.evaluation.summary import Summary
from chaski.runner.generation.output_sequences import StreamedLogits
from chaski.runner.loading.files import OpenedModel
from chaski.runner.loading.loader import load_parts
from chaski.runner.loading.parts import ModelParts, PartOptions
from chaski.runner.prefix.slots import Slot
from chaski.store.model import StoredModel
from tests.tiny_llama import BOS, write_tiny_llama

TEXT = "the inn in the other end, then an inner one. " * 12
CONTEXT = 33


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A model in Q8_0 and in F32, with attention that matters."""
    folder = tmp_path_factory.mktemp("evaluated")
    return [
        write_tiny_llama(folder / f"{kind.name}.gguf", matrices=kind)
        for kind in (QuantType.Q8_0, QuantType.F32)
    ]


def opened(path: Path) -> OpenedModel:
    return OpenedModel.of(StoredModel(None, path))


def loader(files: list[Path], num_outputs: int = 7):
    def load(stack: ExitStack) -> list[chaski.LLM]:
        asked = PartOptions(context=CONTEXT, parallel=1, num_outputs=num_outputs)
        models = [opened(path) for path in files]
        return [
            stack.enter_context(load_parts(ModelParts.of(model, asked), model.defaults, prompt_cache=False))
            for model in models
        ]

    return load


def cut(path: Path) -> Chunks:
    with chaski.load(path, prompt_cache=False) as model:
        return Chunks.of(TEXT, model.tokenizer, CONTEXT)


def description(files: list[Path], chunks: Chunks):
    subjects = [Subject.of(path.name, opened(path).file) for path in files]
    return described(subjects[0], subjects[1] if len(files) > 1 else None, "text", chunks, None)


def run(files: list[Path], num_chunks: int, **options: int):
    chunks = cut(files[0])
    with Records.open(description(files, chunks)) as records:
        evaluate(loader(files, **options), chunks, num_chunks, records)
        return records.scores(num_chunks)


def log_probabilities(path: Path, ids: list[int]) -> np.ndarray:
    with chaski.load(path, context=CONTEXT, prompt_cache=False) as model:
        logits = model.logits(ids).astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_chunks_are_those_of_llama_perplexity(files: list[Path]) -> None:
    """BOS begins each chunk, the first half is context, and the rest after the last chunk is left out."""
    chunks = cut(files[0])
    assert chunks.token_ids[0] == BOS
    assert len(chunks) == len(chunks.token_ids) // CONTEXT
    assert chunks[1] == [BOS, *chunks.token_ids[CONTEXT + 1 : 2 * CONTEXT]]
    assert (chunks.num_unscored, chunks.num_scored) == (17, 16)


@pytest.mark.parametrize("num_outputs", [1, 7, 128])
def test_scores_are_their_definition(files: list[Path], num_outputs: int) -> None:
    chunks = cut(files[0])
    scores = run(files, 2, num_outputs=num_outputs)
    for index in range(2):
        ids, found = chunks[index], scores[16 * index : 16 * (index + 1)]
        own, other = (log_probabilities(path, ids)[16:-1] for path in files)
        targets = ids[17:]
        rows = np.arange(16)
        np.testing.assert_allclose(found["surprisal"], -own[rows, targets], rtol=1e-6)
        np.testing.assert_allclose(found["reference"], -other[rows, targets], rtol=1e-6)
        divergence = (np.exp(other) * (other - own)).sum(axis=1)
        np.testing.assert_allclose(found["divergence"], divergence, rtol=1e-3, atol=1e-9)
        np.testing.assert_array_equal(found["agrees"], own.argmax(axis=1) == other.argmax(axis=1))
    assert (scores["divergence"] > 0).all()


def test_a_model_does_not_diverge_from_itself(files: list[Path]) -> None:
    summary = Summary.of(run([files[0], files[0]], 2))
    assert summary.comparison is not None
    assert set(summary.comparison.divergences.values()) == {0.0}
    assert summary.comparison.agreement.value == 1
    assert summary.comparison.perplexity_ratio.value == 1
    assert summary.perplexity == Summary.of(run([files[0]], 2)).perplexity


def test_the_summary_is_its_definition(files: list[Path]) -> None:
    scores = run(files, 3)
    summary = Summary.of(scores)
    surprisals = scores["surprisal"]
    assert summary.tokens == 48
    assert summary.perplexity.value == pytest.approx(np.exp(surprisals.mean()))
    error = np.sqrt(((surprisals**2).mean() - surprisals.mean() ** 2) / 47)
    assert summary.perplexity.error == pytest.approx(summary.perplexity.value * error)
    found = summary.comparison
    assert found is not None
    assert found.perplexity_ratio.value == pytest.approx(
        summary.perplexity.value / found.reference_perplexity.value
    )
    assert found.divergences["50"] == pytest.approx(np.median(scores["divergence"]))
    assert [*found.divergences.values()] == sorted(found.divergences.values(), reverse=True)


def test_an_interrupted_evaluation_continues(files: list[Path]) -> None:
    """Stored chunks are not computed again, and a chunk that was cut off is."""
    chunks = cut(files[0])
    told: list[int] = []

    def interrupt(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        Records.open(description(files, chunks)) as records,
    ):
        evaluate(loader(files), chunks, 4, records, interrupt)
    (stored,) = (Path(os.environ["OLLAMA_MODELS"]) / "chaski" / "evaluations").glob("*.scores")
    stored.write_bytes(stored.read_bytes()[:-5])
    with Records.open(description(files, chunks)) as records:
        evaluate(loader(files), chunks, 4, records, told.append)
        again = records.scores(4)
    assert told == [1, 2, 3, 4]
    stored.unlink()
    np.testing.assert_array_equal(again, run(files, 4))


def test_a_finished_evaluation_loads_no_model(files: list[Path]) -> None:
    scores = run(files, 3)
    chunks = cut(files[0])
    with Records.open(description(files, chunks)) as records:
        evaluate(lambda stack: pytest.fail("a model was loaded"), chunks, 3, records)
        np.testing.assert_array_equal(records.scores(3), scores)
    ((known, found),) = stored_evaluations()
    assert (known.model.name, known.against.name) == ("Q8_0.gguf", "F32.gguf")
    np.testing.assert_array_equal(found, scores)
    with Records.open(description(files, chunks), restart=True) as records:
        assert len(records) == 0


def test_a_changed_file_is_another_evaluation(files: list[Path], tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "own.gguf")
    chunks = cut(path)
    before = description([path], chunks).key
    path.touch()
    assert description([path], chunks).key != before


def test_two_processes_do_not_write_one_evaluation(files: list[Path]) -> None:
    known = description(files, cut(files[0]))
    with (
        Records.open(known),
        pytest.raises(StoreError, match="another process"),
        Records.open(known),
    ):
        pass


def test_a_store_that_cannot_be_written(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = run(files, 1)
    (tmp_path / "a file").touch()
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "a file" / "models"))
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(run(files, 1), wanted)
    assert "the scores are not stored" in caplog.text
    assert stored_evaluations() == []


def test_a_text_shorter_than_a_chunk(files: list[Path]) -> None:
    with (
        chaski.load(files[0], prompt_cache=False) as model,
        pytest.raises(OptionError, match="the text has 2 tokens, but one chunk has 33"),
    ):
        Chunks.of("the", model.tokenizer, CONTEXT)


class Rows:
    """Stand-in for the outputs of a batch: rows that begin with their position."""

    def __init__(self, positions: range) -> None:
        self._rows = np.array([[position, 0.5] for position in positions], np.float32)

    def fetch(self) -> np.ndarray:
        return self._rows


def test_logits_that_are_computed_again_are_told_once() -> None:
    """The engine computes all tokens of a sequence again if a batch failed."""
    sequence = StreamedLogits(range(8), range(2, 8))
    sequence.start(cast(Slot, SimpleNamespace(tokens=list(range(8)))))
    for batch in (range(2, 4), range(4, 5), None, range(2, 6), range(6, 8)):
        if batch is None:
            sequence.restart()
        else:
            sequence.take(Rows(batch), np.zeros(0, np.float32))
            sequence.write()
    told = [event.rows[:, 0].tolist() for event in sequence.events]
    assert told == [[2, 3], [4], [5], [6, 7]]


def test_tokens_before_the_outputs_are_computed_in_whole_batches() -> None:
    sequence = StreamedLogits(range(100), range(60, 100))
    sequence.start(cast(Slot, SimpleNamespace(tokens=[])))
    assert sequence.share(50, 16) == 50
    assert sequence.share(512, 16) == 76
