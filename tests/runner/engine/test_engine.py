"""The engine on a model of which every logit is known: after token t comes t + 1."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chaski.chat.events import Done
from chaski.errors import CacheFullError, ComputationError, NotSupportedError, OptionError, SamplingError
from chaski.kvcache.batch import Batch
from chaski.model.output_rows import OutputRows
from chaski.runner.engine.engine import Engine
from chaski.runner.engine.outputs import Outputs
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.generation import Generation
from chaski.runner.generation.output_sequences import LogitsSequence
from chaski.runner.generation.request import GenerationRequest, Shift
from chaski.runner.prefix.slots import Policy
from chaski.sample import SamplingOptions
from tests.random_mixes import assert_whole

VOCAB = 1000
NAN_TOKEN = 666
UNKNOWN = -1


class Computed:
    """Stands for a launch with these logits."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self._logits = logits

    def wait(self) -> None:
        """Everything is computed at its launch."""

    def rows(self, output: str, begin: int = 0, end: int | None = None) -> NDArray[np.float32]:
        assert output == "outputs"
        return self._logits[begin:end]


class CountingProgram:
    """Stands for `Program` and `Cache`: it checks what the engine promises to both, and remembers batches."""

    def __init__(self, parallel: int, max_tokens: int = 8, max_outputs: int = 4) -> None:
        self.max_tokens = max_tokens
        self.max_outputs = max_outputs
        self.max_top_logits = 4
        self.stored: list[list[int]] = [[] for _ in range(parallel)]
        self.batches: list[Batch] = []
        self.calls: list[str] = []
        self.fail: Callable[[], None] = lambda: None
        self.can_trim = True
        self.can_go_back = True
        self.can_move = True
        self.shared_from: int | None = None

    def prepare(self, batch: Batch) -> Batch:
        self.calls.append("prepare")
        assert 0 < len(batch.tokens) <= self.max_tokens
        assert len(batch.outputs) <= self.max_outputs
        assert not batch.tokens.any(), "tokens are filled in later"
        for position, sequence in zip(batch.positions, batch.sequences, strict=True):
            assert position == len(self.stored[sequence])
            self.stored[sequence].append(UNKNOWN)
        return batch

    def undo_forward(self, batch: Batch) -> None:
        self.calls.append("undo")
        for sequence in batch.sequences:
            assert self.stored[sequence].pop() == UNKNOWN

    def launch(self, batch: Batch, num_top_logits: list[int]) -> None:
        assert len(num_top_logits) == len(batch.outputs)
        assert all(0 <= count <= self.max_top_logits for count in num_top_logits)
        self.calls.append("launch")
        self.fail()
        tokens, positions, sequences, outputs = (array.copy() for array in _arrays(batch))
        self.batches.append(Batch(tokens, positions, sequences, outputs, batch.ends))
        for token, position, sequence in zip(*_arrays(batch)[:3], strict=True):
            assert self.stored[sequence][position] == UNKNOWN
            self.stored[sequence][position] = int(token)

    def wait(self) -> None:
        """Everything is computed at its launch."""

    def outputs(self) -> OutputRows:
        self.calls.append("outputs")
        batch = self.batches[-1]
        logits = np.zeros((len(batch.outputs), VOCAB), np.float32)
        after = (batch.tokens[batch.outputs] + 1) % VOCAB
        logits[np.arange(len(after)), after] = 1
        logits[batch.tokens[batch.outputs] == NAN_TOKEN] = np.nan
        return OutputRows(Computed(logits), 0, len(logits), VOCAB)

    def top_logits(self) -> NDArray[np.float32]:
        """None are found, so samplers look for themselves."""
        return np.full((len(self.batches[-1].outputs), 2, self.max_top_logits), np.nan, np.float32)

    @property
    def can_step_back(self) -> bool:
        return self.can_go_back

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        assert source != target
        self.stored[target] = self.stored[source][:length]

    def can_resume(self, sequence: int, position: int) -> bool:
        held = len(self.stored[sequence])
        return position <= held if self.can_go_back else position == held

    def forget(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self.stored[sequence] = []

    def resumable(self, sequence: int, position: int) -> int:
        return position if self.can_resume(sequence, position) else 0

    def length(self, sequence: int) -> int:
        return len(self.stored[sequence])

    def check_remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        if end is not None and not self.can_move:
            raise NotSupportedError("keys cannot be moved")

    def first_shared(self, sequence: int, begin: int) -> int:
        shared, self.shared_from = self.shared_from, None  # what is computed again is not shared
        return len(self.stored[sequence]) if shared is None else shared

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        self.check_remove(sequence, begin, end)
        assert end is None or begin <= end <= len(self.stored[sequence])
        if end is None and 0 < begin < len(self.stored[sequence]) and not self.can_trim:
            raise NotSupportedError("the tail cannot be removed")
        if end is None and not self.can_resume(sequence, begin):
            begin = 0
        del self.stored[sequence][begin:end]


def _arrays(batch: Batch) -> tuple[NDArray[np.int32], ...]:
    return batch.tokens, batch.positions, batch.sequences, batch.outputs


def make(parallel: int = 1, prompt_cache: bool = True) -> tuple[Engine, CountingProgram]:
    program: Any = CountingProgram(parallel)
    return Engine(program, program, parallel, Policy.SMALLER_LOSS if prompt_cache else None), program


def request(prompt: list[int], num_predict: int = 3, **options: Any) -> Generation:
    greedy = SamplingOptions(temperature=0)
    return Generation(
        GenerationRequest(prompt=prompt, limit=len(prompt) + num_predict, sampling=greedy, **options)
    )


def run(engine: Engine, sequence: Sequence) -> Done:
    engine.submit(sequence)
    return finish(engine, sequence)


def finish(engine: Engine, sequence: Sequence) -> Done:
    engine.wait(sequence)
    event = sequence.events.popleft()
    assert isinstance(event, Done)
    return event


def test_a_sequence_counts_on_to_its_limit() -> None:
    engine, _ = make()
    sequence = request([5, 6])
    done = run(engine, sequence)
    assert sequence.tokens == [5, 6, 7, 8, 9]
    assert (done.reason, done.prompt_tokens, done.cached_tokens, done.generated_tokens) == ("length", 2, 0, 3)


def test_it_ends_at_an_end_token() -> None:
    engine, _ = make()
    sequence = request([5], 50, end_ids=frozenset({8, 30}))
    assert run(engine, sequence).reason == "stop"
    assert sequence.tokens == [5, 6, 7, 8]


def test_without_anything_to_predict_only_the_prompt_is_computed() -> None:
    engine, program = make()
    sequence = request([5, 6], 0)
    assert run(engine, sequence).generated_tokens == 0
    assert program.stored == [[5, 6]]


def test_prompts_are_computed_in_chunks() -> None:
    engine, program = make()
    run(engine, request(list(range(20)), 2))
    assert [len(batch.tokens) for batch in program.batches] == [8, 8, 4, 1]
    assert [batch.outputs.tolist() for batch in program.batches] == [[], [], [3], [0]]


def test_sequences_decode_in_one_batch() -> None:
    engine, program = make(parallel=3)
    sequences = [request([start]) for start in (10, 20, 30)]
    for sequence in sequences:
        engine.submit(sequence)
    for sequence in sequences:
        finish(engine, sequence)
    assert [sequence.tokens for sequence in sequences] == [
        [10, 11, 12, 13],
        [20, 21, 22, 23],
        [30, 31, 32, 33],
    ]
    assert [len(batch.tokens) for batch in program.batches] == [3, 3, 3]


def test_a_long_prompt_does_not_stop_the_others() -> None:
    engine, program = make(parallel=2)
    short, long = request([10], 4), request(list(range(100, 120)), 1)
    engine.submit(long)
    engine.submit(short)
    finish(engine, short)
    assert [batch.sequences.tolist().count(1) for batch in program.batches] == [1, 1, 1, 1]
    assert finish(engine, long).reason == "length"


def test_sequences_wait_for_a_slot_and_then_run() -> None:
    engine, _ = make(parallel=1)
    sequences = [request([start]) for start in (10, 20, 30)]
    for sequence in sequences:
        engine.submit(sequence)
    finish(engine, sequences[2])
    assert [sequence.is_running for sequence in sequences] == [False, False, False]


def test_the_next_prompt_takes_over_what_was_computed() -> None:
    engine, program = make()
    run(engine, request([5, 6, 7]))
    program.batches.clear()
    done = run(engine, request([5, 6, 7, 8, 40, 41], 1))
    assert done.cached_tokens == 4
    assert program.batches[0].tokens.tolist() == [40, 41]


def test_nobody_takes_over_what_was_computed_for_another_cache_salt() -> None:
    for parallel in (1, 2):
        engine, _ = make(parallel)
        run(engine, request([5, 6, 7], cache_salt="hers"))
        assert run(engine, request([5, 6, 7], cache_salt="his")).cached_tokens == 0
        # With one slot hers is lost; with two both keep what they have.
        assert run(engine, request([5, 6, 7], cache_salt="hers")).cached_tokens == (0, 2)[parallel - 1]
        assert run(engine, request([5, 6, 7], cache_salt="hers")).cached_tokens == 2
        assert run(engine, request([5, 6, 7])).cached_tokens == 0


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine, program = make()
    run(engine, request([5, 6, 7], 0))
    program.batches.clear()
    sequence = request([5, 6, 7])
    assert run(engine, sequence).cached_tokens == 2
    assert sequence.tokens == [5, 6, 7, 8, 9, 10]
    assert program.batches[0].tokens.tolist() == [7]


def test_a_prefix_is_shared_with_a_sequence_that_runs() -> None:
    engine, program = make(parallel=2)
    first = request([1, 2, 3, 4], 30)
    engine.submit(first)
    finish(engine, request_of_one_step(engine))
    second = request([1, 2, 3, 9], 1)
    assert run(engine, second).cached_tokens == 3
    assert program.stored[1][:4] == [1, 2, 3, 9]
    assert finish(engine, first).generated_tokens == 30


def request_of_one_step(engine: Engine) -> Sequence:
    """A sequence that is done after a single batch."""
    sequence = request([500], 0)
    engine.submit(sequence)
    return sequence


def test_without_the_prompt_cache_everything_is_computed() -> None:
    engine, _ = make(prompt_cache=False)
    run(engine, request([5, 6, 7]))
    assert run(engine, request([5, 6, 7])).cached_tokens == 0


def test_a_cache_that_cannot_drop_a_tail_starts_again() -> None:
    engine, program = make()
    run(engine, request([5, 6, 7]))
    program.can_trim = False
    sequence = request([5, 6, 9])
    assert run(engine, sequence).cached_tokens == 0
    assert sequence.tokens == [5, 6, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("context", "num_keep", "count"),
    [(2048, 5, 1008), (2048, 2047, 1), (2048, 0, 1024), (10, 2, 4), (40, 7, 16)],
)
def test_how_much_a_full_context_drops(context: int, num_keep: int, count: int) -> None:
    assert Shift(context, num_keep).dropped() == range(num_keep, num_keep + count)


@pytest.mark.parametrize(("can_move", "computed"), [(True, [1]), (False, [5])])
def test_a_full_context_drops_half_of_what_it_need_not_keep(can_move: bool, computed: list[int]) -> None:
    engine, program = make()
    program.can_move = can_move
    sequence = request([50, 60, 1, 2, 3, 4, 5, 6], 8, shift=Shift(10, 2))
    done = run(engine, sequence)
    # Full with 50 60 1 2 3 4 5 6 7 8, it drops 1 2 3 4; full again with … 8 9 10 11 12, it drops 5 6 7 8.
    assert sequence.tokens == [50, 60, 9, 10, 11, 12, 13, 14]
    assert program.stored == [sequence.tokens[:-1]]
    assert max(int(batch.positions.max()) for batch in program.batches) == 9
    assert [len(batch.tokens) for batch in program.batches[3:4]] == computed
    assert (done.reason, done.generated_tokens, done.shifted_tokens) == ("length", 8, 8)


def test_moved_keys_are_not_taken_over_by_other_prompts() -> None:
    engine, program = make(parallel=2)
    run(engine, request([50, 60, 1, 2, 3, 4, 5, 6], 4, shift=Shift(10, 2)))
    assert program.stored[0][:4] == [50, 60, 5, 6]
    assert run(engine, request([50, 60, 5, 6, 7, 8, 40])).cached_tokens == 2
    # Computed anew, they are as good as any.
    assert run(engine, request([50, 60, 5, 6, 7, 8, 41])).cached_tokens == 6


def test_what_others_hold_is_computed_again_before_it_moves() -> None:
    engine, program = make()
    sequence = request([50, 60, 1, 2, 3, 4, 5, 6], 4, shift=Shift(10, 2))
    program.shared_from = 7
    run(engine, sequence)
    assert sequence.tokens == [50, 60, 5, 6, 7, 8, 9, 10]
    assert program.stored == [sequence.tokens[:-1]]
    # From the first that others hold up to the end of the context, and no further.
    again = next(batch for batch in program.batches[3:] if len(batch.tokens) > 1)
    assert (again.positions.tolist(), again.tokens.tolist()) == ([7, 8, 9], [6, 7, 8])


def step(engine: Engine) -> None:
    engine._exclusive.run(engine._step)


def test_moved_keys_are_known_by_the_lowest_position_of_all_shifts() -> None:
    """What is kept ends within a group at first, which is dropped with what is behind it."""
    engine, program = make(parallel=2)
    prompt = [50, 51, 52, 53, *range(100, 108), 1, 2]
    sequence = request(prompt, 14, shift=Shift(16, 6), groups=(range(4, 12),))
    engine.submit(sequence)
    step(engine)
    slot = sequence.slot
    while slot.shifted_at is None:
        step(engine)
    assert (slot.shifted_at, sequence.tokens[:6]) == (4, [50, 51, 52, 53, 1, 2])
    finish(engine, sequence)
    assert sequence.tokens[:8] == [50, 51, 52, 53, 1, 2, 8, 9]
    assert slot.shifted_at == 4
    assert run(engine, request([50, 51, 52, 53, 1, 2, 40], 1)).cached_tokens == 4
    assert program.calls.count("launch") > 10


@pytest.mark.parametrize("can_go_back", [True, False])
def test_a_context_that_is_dropped_to_its_end(can_go_back: bool) -> None:
    engine, program = make()
    program.can_go_back = can_go_back
    sequence = request(list(range(100, 110)), 5, shift=Shift(10, 9))
    assert run(engine, sequence).shifted_tokens == 4
    assert sequence.tokens == [*range(100, 109), 113, 114][: len(sequence.tokens)]
    assert program.stored == [sequence.tokens[:-1]]


def test_a_cache_that_cannot_go_back_starts_again() -> None:
    engine, program = make()
    run(engine, request([5, 6, 7]))
    program.can_go_back = False
    sequence = request([5, 6, 9])
    assert run(engine, sequence).cached_tokens == 0
    assert sequence.tokens == [5, 6, 9, 10, 11, 12]
    longer = request([*sequence.tokens[:-1], 20])
    assert run(engine, longer).cached_tokens == 5


def test_a_cancelled_sequence_frees_its_slot() -> None:
    engine, _ = make()
    forgotten = request([5], 500)
    engine.submit(forgotten)
    step(engine)
    forgotten.cancel()
    run(engine, request([50]))
    assert len(forgotten.tokens) == 2
    assert not forgotten.events


def test_a_sequence_cancelled_before_it_ran_is_skipped() -> None:
    engine, program = make()
    forgotten = request([5])
    engine.submit(forgotten)
    forgotten.cancel()
    run(engine, request([50]))
    assert 5 not in np.concatenate([batch.tokens for batch in program.batches])


def failing(error: type[BaseException]) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise error("on purpose")

    return fail


def test_a_batch_that_was_interrupted_has_not_happened() -> None:
    engine, program = make()
    sequence = request([5, 6])
    engine.submit(sequence)
    program.fail = failing(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.wait(sequence)
    assert program.stored == [[]]
    program.fail = lambda: None
    finish(engine, sequence)
    assert sequence.tokens == [5, 6, 7, 8, 9]


def test_a_batch_that_fails_ends_all_that_run_and_the_next_may_work() -> None:
    engine, program = make(parallel=2)
    sequences = [request([5, 6], 50), request([7], 50), request([8])]
    for sequence in sequences:
        engine.submit(sequence)
    for _ in range(3):
        step(engine)
    program.fail = failing(RuntimeError)
    for sequence in sequences[:2]:
        engine.wait(sequence)
        error = sequence.events.popleft()
        assert isinstance(error, ComputationError)
        assert "RuntimeError: on purpose" in str(error)
        assert not sequence.is_running
    program.fail = lambda: None
    finish(engine, sequences[2])
    assert sequences[2].tokens == [8, 9, 10, 11]
    assert run(engine, request([5, 6])).reason == "length"


def test_an_error_in_the_middle_of_choosing_ends_the_one_that_is_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, _ = make(parallel=2)
    sequences = [request([10]), request([20])]
    for sequence in sequences:
        engine.submit(sequence)
    with monkeypatch.context() as patched:
        patched.setattr(Generation, "take", failing(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.wait(sequences[0])
    assert isinstance(sequences[0].events.popleft(), ComputationError)
    finish(engine, sequences[1])
    assert sequences[1].tokens == [20, 21, 22, 23]
    assert_whole(engine)


class Spoilt(Generation):
    """A generation one of whose methods fails when its tokens are so many."""

    method: str
    at: int

    def __getattribute__(self, name: str) -> Any:
        cls = type(self)
        value = super().__getattribute__(name)
        if name != cls.method or len(super().__getattribute__("tokens")) < cls.at:
            return value
        if callable(value):
            return failing(RuntimeError)
        raise RuntimeError("on purpose")


@pytest.mark.parametrize("at", [4, 5, 6, 8])
@pytest.mark.parametrize(
    "method", ["take", "write", "propose", "start", "outputs", "share", "num_pending", "full_context", "drop"]
)
def test_what_goes_wrong_with_one_sequence_ends_no_other(method: str, at: int) -> None:
    engine, _ = make(parallel=3)
    others = [request([10, 11, 12, 13], 12, shift=Shift(9, 2)) for _ in range(2)]
    kind = type("Kind", (Spoilt,), {"method": method, "at": at, "__slots__": ()})
    greedy = SamplingOptions(temperature=0)
    spoilt = kind(GenerationRequest(prompt=[10, 11, 30, 31], limit=20, sampling=greedy, shift=Shift(8, 2)))
    for sequence in (others[0], spoilt, others[1]):
        engine.submit(sequence)
    engine.wait(spoilt)
    event = spoilt.events.popleft()
    # It starts with four tokens, and once.
    assert isinstance(event, ComputationError) == (method != "start" or at == 4)
    for sequence in others:
        assert finish(engine, sequence).generated_tokens == 12
        assert sequence.tokens[-2:] == [24, 25]
    assert run(engine, request([10, 11, 30, 31])).reason == "length"
    assert_whole(engine)


def test_a_sequence_that_its_cache_refuses_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, program = make(parallel=2)
    others = [request([10], 12), request([20], 12)]
    prepare = program.prepare

    def refusing(batch: Batch) -> Batch:
        if ((batch.sequences == 1) & (batch.positions >= 5)).any():
            raise CacheFullError("sequence 1 holds 5 tokens and 1 more do not fit")
        return prepare(batch)

    monkeypatch.setattr(program, "prepare", refusing)
    for sequence in others:
        engine.submit(sequence)
    assert finish(engine, others[0]).generated_tokens == 12
    engine.wait(others[1])
    assert isinstance(others[1].events.popleft(), CacheFullError)
    assert_whole(engine)


def test_a_batch_is_prepared_while_the_one_before_is_computed() -> None:
    engine, program = make()
    run(engine, request([5, 6], 3))
    assert program.calls == ["prepare", "launch", *["prepare", "outputs", "launch"] * 2, "outputs"]


def test_an_end_that_could_not_be_foreseen_takes_the_next_batch_back() -> None:
    engine, program = make(parallel=2)
    ends, goes_on = request([5], 50, end_ids=frozenset({7})), request([100], 4)
    engine.submit(ends)
    engine.submit(goes_on)
    finish(engine, ends)
    assert program.calls.count("undo") == 1
    assert ends.tokens == [5, 6, 7]
    finish(engine, goes_on)
    assert [len(batch.tokens) for batch in program.batches] == [2, 2, 1, 1]
    assert program.stored == [[5, 6], [100, 101, 102, 103]]


def test_who_comes_while_a_batch_is_computed_is_in_the_next_one() -> None:
    engine, program = make(parallel=2)
    long, short = request(list(range(100, 160)), 1), request([10, 11], 1)
    engine.submit(long)
    step(engine)
    engine.submit(short)
    step(engine)
    # The second batch was being computed when the request came.
    assert [batch.sequences.tolist() for batch in program.batches] == [[0] * 8, [0] * 8, [1] * 2 + [0] * 6]
    step(engine)
    assert short.events


def test_the_token_that_was_computed_behind_a_stop_text_is_dropped() -> None:
    class Digits:
        def feed(self, token_id: int) -> str:
            return f"{token_id} "

        def flush(self) -> str:
            return ""

    engine, program = make()
    sequence = request([5], 50, decoder=Digits(), stop=("8",))
    engine.submit(sequence)
    done: object = None
    while not isinstance(done, Done):
        engine.wait(sequence)
        done = sequence.events.popleft()
    assert (done.stop_string, done.generated_tokens) == ("8", 3)
    # The batch behind it is on its way already; the next request takes over what it leaves.
    assert program.stored == [[5, 6, 7, 8]]
    assert run(engine, request([5, 6, 7, 8, 40], 1)).cached_tokens == 4


def test_proposals_are_computed_with_the_token_before_them() -> None:
    engine, program = make()
    # 13 and 14 are proposed, and come; of 30, 31, 32 none does; then there is nothing to go by.
    prompt = [10, 11, 12, 13, 14, 15, 30, 31, 32, 10, 11, 12]
    sequence = request(prompt, 8, context=100, max_proposed=3)
    run(engine, sequence)
    assert sequence.tokens == [*prompt, *range(13, 21)]
    assert [batch.tokens.tolist() for batch in program.batches[2:]] == [
        [13, 14, 15, 30],
        [16],
        [17],
        [18],
        [19],
    ]
    assert program.stored == [sequence.tokens[:-1]]


def test_proposals_leave_room_for_everybody_who_decodes() -> None:
    engine, _ = make(parallel=3)
    pattern = [*range(10, 20), 10, 11, 12]
    speculating = [request(pattern, 6, context=100, max_proposed=8) for _ in range(2)]
    other = request([500], 9)
    for sequence in (*speculating, other):
        engine.submit(sequence)
    finish(engine, other)
    for sequence in speculating:
        finish(engine, sequence)
        assert sequence.tokens == [*pattern, *range(13, 19)]
    assert other.tokens == list(range(500, 510))


def test_a_group_is_never_cut() -> None:
    engine, program = make(parallel=2)
    group = range(5, 11)
    grouped = request(list(range(100, 112)), 1, groups=(group,))
    other = request([10], 6)
    engine.submit(other)
    engine.submit(grouped)
    finish(engine, grouped)
    whole = [batch for batch in program.batches if set(group) & set(_positions(batch, 1))]
    assert len(whole) == 1
    assert set(group) <= set(_positions(whole[0], 1))
    assert whole[0].ends is not None
    ends = whole[0].ends[whole[0].sequences == 1].tolist()
    expected = [group.stop if position in group else position + 1 for position in _positions(whole[0], 1)]
    assert ends == expected
    finish(engine, other)
    assert other.tokens == [10, 11, 12, 13, 14, 15, 16]


def _positions(batch: Batch, sequence: int) -> list[int]:
    return [int(position) for position in batch.positions[batch.sequences == sequence]]


def test_a_group_at_the_end_of_a_prompt_is_computed_again_as_a_whole() -> None:
    engine, program = make()
    prompt, groups = [1, 2, 3, 4, 5], (range(2, 5),)
    run(engine, request(prompt, 0, groups=groups))
    program.batches.clear()
    assert run(engine, request(prompt, 1, groups=groups)).cached_tokens == 2
    assert program.batches[0].tokens.tolist() == [3, 4, 5]


def test_a_group_that_is_larger_than_a_batch_is_refused() -> None:
    engine, _ = make()
    with pytest.raises(OptionError, match="9 tokens must be computed at once, but num_batch is 8"):
        engine.submit(request(list(range(20)), groups=(range(3, 12),)))


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
    # 5 would come after 4, and 4 after 3; of the tokens that never came the first is taken.
    assert sequence.tokens == [5, 4, 0, 1, 2, 3, 6, 7]


def test_a_stop_text_that_the_end_completes() -> None:
    class Held:
        """Gives out its text at the end only, as bytes of an incomplete character are."""

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
    """Take the next turn as soon as one ended, as the reader of a stream does."""
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
