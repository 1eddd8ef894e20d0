"""Logits, penalties, stop texts, and the order in which requests are computed."""

from __future__ import annotations

import threading
import time

import numpy as np
from numpy.typing import NDArray

from chaski.chat.events import Done
from chaski.errors import SamplingError
from chaski.runner.engine.engine import Engine
from chaski.runner.engine.outputs import Outputs
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.generation import Generation
from chaski.runner.generation.output_sequences import LogitsSequence
from chaski.runner.generation.request import GenerationRequest
from chaski.sample import SamplingOptions
from tests.runner.engine.counting_program import (
    NAN_TOKEN,
    VOCAB,
    finish,
    make,
    request,
    run,
    step,
)


def test_a_sampling_error_ends_its_own_sequence_only() -> None:
    engine, _ = make(parallel=2)
    broken, sound = request([NAN_TOKEN]), request([5])
    engine.submit(broken)
    engine.submit(sound)
    engine.wait(broken)
    assert isinstance(broken.events[0], SamplingError)
    finish(engine, sound)
    assert sound.tokens == [5, 6, 7, 8]


def test_logits_of_every_position() -> None:
    engine, program = make()
    logits = every_output(engine, [3, 5, 7, 9, 11, 13])
    assert logits.argmax(1).tolist() == [4, 6, 8, 10, 12, 14]
    assert [len(batch.tokens) for batch in program.batches] == [4, 2]
    assert program.stored == [[3, 5, 7, 9, 11, 13]]


def every_output(engine: Engine, ids: list[int]) -> NDArray[np.float32]:
    sequence = LogitsSequence(ids)
    engine.submit(sequence)
    engine.wait(sequence)
    event = sequence.events.popleft()
    assert isinstance(event, Outputs)
    return event.rows


def test_logits_wait_for_a_free_slot() -> None:
    engine, _ = make()
    sequence = request([5])
    engine.submit(sequence)
    step(engine)
    assert every_output(engine, [7]).argmax(1).tolist() == [8]
    assert sequence.tokens == [5, 6, 7, 8]


def test_penalties_see_prompt_and_answer() -> None:
    engine, _ = make()
    options = SamplingOptions(temperature=0, presence_penalty=10.0)
    sequence = Generation(GenerationRequest(prompt=[5, 4], limit=8, sampling=options))
    run(engine, sequence)
    # 5 would follow 4, and 4 would follow 3; of the unused tokens, the first is chosen.
    assert sequence.tokens == [5, 4, 0, 1, 2, 3, 6, 7]


def test_a_stop_text_that_the_end_completes() -> None:
    class Held:
        """Holds its text back until the end, like bytes of an incomplete character."""

        def feed(self, token_id: int) -> str:
            return ""

        def flush(self) -> str:
            return "END"

    engine, _ = make()
    sequence = request([5], 2, decoder=Held(), stop=("END",))
    engine.submit(sequence)
    engine.wait(sequence)
    done = sequence.events[-1]
    assert isinstance(done, Done)
    assert (done.reason, done.stop_string) == ("stop", "END")


def test_a_short_request_does_not_wait_for_the_end_of_a_long_one() -> None:
    engine, program = make(parallel=2)
    work = np.ones(1_000_000)
    program.fail = lambda: work.sum()
    long, short = request([100], 500), request([10], 5)
    engine.submit(long)
    reader = threading.Thread(target=read_one_by_one, args=(engine, long))
    reader.start()
    while len(long.tokens) < 20:
        time.sleep(0.001)
    before = len(long.tokens)
    run(engine, short)
    assert len(long.tokens) - before < 100
    reader.join(timeout=20)


def read_one_by_one(engine: Engine, sequence: Sequence) -> None:
    """Take the next turn as soon as one ended, like the reader of a stream."""
    while sequence.is_running:
        step(engine)


def test_threads_share_the_engine() -> None:
    engine, _ = make(parallel=3)
    sequences = [request([100 * start], 60) for start in range(8)]
    threads = [threading.Thread(target=run, args=(engine, sequence)) for sequence in sequences]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    for start, sequence in enumerate(sequences):
        assert sequence.tokens == [(100 * start + step) % VOCAB for step in range(61)]
