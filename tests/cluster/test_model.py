"""A model with several replicas that come and go."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from operator import lt
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import chaski
from chaski.chat.events import Done, Text
from chaski.chat.requests import Generate
from chaski.cluster.answers import RoutedAnswer
from chaski.cluster.autoscaling import Bounds
from chaski.cluster.members import Member
from chaski.cluster.model import ClusterModel
from chaski.cluster.peer import Patience
from chaski.errors import (
    ChaskiError,
    GGUFError,
    NoReplicaError,
    OutOfMemoryError,
    SamplingError,
    UnsupportedError,
    WorkerError,
)
from chaski.formats.quant import QuantType
from chaski.server.telemetry.gauges import Gauges
from tests.cluster.replicas import Replica, Replicas
from tests.tiny_llama import write_tiny_llama

LONG: dict[str, Any] = {"num_predict": 150, "temperature": 1.0, "seed": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_llama(folder / "tiny.gguf", matrices=QuantType.Q8_0, llama__context_length=2048)


@pytest.fixture
def replicas(path: Path) -> Iterator[Replicas]:
    found = Replicas(path, parallel=4, context=1024)
    yield found
    found.end()


def wait_until(is_so: Callable[[], bool], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def answered(replica: Replica) -> int:
    return sum(isinstance(call, Generate) for call in replica.asked)


def has_more_links(replica: Replica, before: int) -> Callable[[], bool]:
    return lambda: replica.num_links > before


def test_it_has_the_methods_of_a_model(path: Path, replicas: Replicas) -> None:
    replicas.add(2)
    model = replicas.model()
    with chaski.load(path, threads=1, context=1024) as alone:
        assert model.generate("0", **LONG).token_ids == alone.generate("0", **LONG).token_ids
        assert model.tokenize("hello") == alone.tokenize("hello")
        assert model.detokenize([40, 41]) == alone.detokenize([40, 41])
        many = [f"{number}" for number in range(9)]
        assert [each.text for each in model.generate_many(many, **LONG)] == [
            each.text for each in alone.generate_many(many, **LONG)
        ]
    with pytest.raises(SamplingError):
        model.generate("0", temperature=-1)
    with pytest.raises(UnsupportedError, match="one engine"):
        model.save_state("0", "state")
    model.close()
    with pytest.raises(WorkerError, match="closed"):
        model.generate("0")


def test_prometheus_is_told_what_each_node_does(replicas: Replicas) -> None:
    replicas.add(2)
    model = replicas.model()
    wait_until(lambda: model.num_replicas == 2)
    stream = model.stream("once", **{**LONG, "num_predict": 900})
    next(stream)
    pool: Any = SimpleNamespace(loaded=[SimpleNamespace(name="tiny", worker=model)])
    told = {
        metric.name: [(sample.labels, sample.value) for sample in metric.samples]
        for metric in Gauges(pool)._of_nodes()
    }
    labels = {"model": "tiny", "node": "here"}
    names = [state.name for state in model.replicas()]
    busy = [state.name for state in model.replicas() if state.answers]
    assert len(busy) == 1
    assert told == {
        "chaski_node_replicas": [(labels, 2)],
        "chaski_node_places": [(labels, 8)],
        "chaski_node_running": [(labels, 1)],
        "chaski_replica_places": [({**labels, "replica": name}, 4) for name in names],
        "chaski_replica_running": [({**labels, "replica": name}, int(name in busy)) for name in names],
        "chaski_replica_waiting": [({"model": "tiny"}, 0)],
        "chaski_resumed": [({"model": "tiny"}, 0)],
        "chaski_suspected": [({"model": "tiny"}, 0)],
    }
    stream.close()


def test_requests_go_to_all_replicas(replicas: Replicas) -> None:
    first, second = replicas.add(2)
    model = replicas.model()
    wait_until(lambda: model.num_replicas == 2)
    model.generate_many(["0"] * 8, **LONG)
    assert answered(first) == answered(second) == 4


def test_a_prompt_goes_where_its_beginning_was_computed(replicas: Replicas) -> None:
    members = replicas.add(3)
    model = replicas.model()
    wait_until(lambda: model.num_replicas == 3)
    documents = ["".join(chr(97 + (i * i + n) % 26) for i in range(600)) for n in range(3)]
    where: dict[int, set[str]] = {}
    for turn in range(4):
        for number, document in enumerate(documents):
            before = [answered(replica) for replica in members]
            answer = model.generate(document + str(turn), num_predict=2, ignore_eos=True)
            (chosen,) = (r.name for r, count in zip(members, before, strict=True) if answered(r) > count)
            where.setdefault(number, set()).add(chosen)
            assert turn == 0 or answer.cached_tokens >= 512
    assert [len(names) for names in where.values()] == [1, 1, 1]


@pytest.mark.parametrize("seed", [5, None])
def test_an_answer_goes_on_when_its_replica_dies(path: Path, replicas: Replicas, seed: int | None) -> None:
    replicas.add(3)
    model = replicas.model()
    wait_until(lambda: model.num_replicas == 3)
    options = {**LONG, "seed": seed, "num_predict": 600}
    pieces, killed = [], 0
    for event in model.stream("once", **options):
        pieces.append(event)
        if len(pieces) in (5, 200) and killed < 2:
            (busy,) = (state.name for state in model.replicas() if state.answers)
            replicas.kill(next(replica for replica in replicas._all if replica.name == busy))
            killed += 1
    *texts, done = pieces
    assert isinstance(done, Done)
    assert killed == 2
    assert done.generated_tokens == 600
    lost = ["LostReplicaError", "LostReplicaError"]
    assert [attempt.error for attempt in done.attempts] == [*lost, None]
    assert len({attempt.replica for attempt in done.attempts}) == 3
    assert model.losses.resumed == 2
    ids = [token for text in texts if isinstance(text, Text) for token in text.token_ids]
    assert len(ids) == 600
    if seed is not None:
        with chaski.load(path, threads=1, context=1024) as alone:
            assert ids == list(alone.generate("once", **options).token_ids)


@pytest.mark.long
def test_many_answers_go_on_while_replicas_die_and_come(path: Path, replicas: Replicas) -> None:
    replicas.add(2)
    model = replicas.model()
    wait_until(lambda: model.num_replicas == 2)
    requests = [(f"story {number}", {**LONG, "seed": number}) for number in range(16)]
    is_over = threading.Event()
    num_tokens = 0

    def trouble() -> None:
        """Kill a replica whenever the answers have grown, so that slow machines see as many deaths."""
        killed_at = 0
        while not is_over.wait(0.3):
            if num_tokens > killed_at + 200:
                killed_at = num_tokens
                replicas.add(1)
                replicas.kill(next(iter(replicas._living.values())))

    async def answer(prompt: str, options: dict[str, Any]) -> list[int]:
        nonlocal num_tokens
        ids: list[int] = []
        async for event in model.asynchronous().stream(prompt, **options):
            if isinstance(event, Text):
                ids += event.token_ids
                num_tokens += len(event.token_ids)
        return ids

    async def all_answers() -> list[list[int]]:
        return await asyncio.gather(*(answer(prompt, options) for prompt, options in requests))

    thread = threading.Thread(target=trouble)
    thread.start()
    try:
        found = [ids for _ in range(3) for ids in asyncio.run(all_answers())]
    finally:
        is_over.set()
        thread.join()
    with chaski.load(path, threads=1, context=1024) as alone:
        expected = [list(alone.generate(prompt, **options).token_ids) for prompt, options in requests]
    assert found == expected * 3


@pytest.mark.long
def test_a_replica_that_says_nothing_any_more_counts_as_dead(replicas: Replicas) -> None:
    replicas.add(2)
    model = replicas.model(patience=Patience(silence=1.0))
    wait_until(lambda: model.num_replicas == 2)
    stream = model.stream("once", **{**LONG, "num_predict": 900})
    next(stream)
    (busy,) = (state.name for state in model.replicas() if state.answers)
    next(replica for replica in replicas._all if replica.name == busy).is_silent = True
    *_, done = stream
    assert isinstance(done, Done)
    assert done.generated_tokens == 900


def test_a_replica_is_connected_to_again_when_its_link_is_back(replicas: Replicas) -> None:
    (replica, _) = replicas.add(2)
    model = replicas.model()
    for _ in range(3):
        wait_until(lambda: model.num_replicas == 2)
        before = replica.num_links
        replica.break_links()
        wait_until(has_more_links(replica, before))
    wait_until(lambda: model.num_replicas == 2)
    model.generate_many(["0"] * 8, **LONG)
    assert answered(replica) > 0


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_request_that_kills_every_replica_ends_with_an_error(replicas: Replicas, is_silent: bool) -> None:
    """Four replicas die, and the fifth continues to answer, even if replicas miss heartbeats meanwhile."""

    class Poisonous(Replica):
        def start(self, call: Any, put: Any) -> Any:
            if isinstance(call, Generate) and call.prompt == "poison":
                # A token that arrives before the death would clear the request of suspicion.
                self.is_silent = True
                threading.Thread(target=replicas.kill, args=(self,)).start()
            return super().start(call, put)

    for replica in replicas.add(5):
        replica.__class__ = Poisonous
    model = replicas.model()
    wait_until(lambda: model.num_replicas == 5)
    for replica in replicas._all:
        replica.is_silent = is_silent
    if is_silent:
        before = [len(replica.asked) for replica in replicas._all]
        wait_until(lambda: all(map(lt, before, [len(replica.asked) for replica in replicas._all])))
    with pytest.raises(WorkerError, match="is gone"):
        model.generate("poison", **{**LONG, "num_predict": 900})
    assert model.losses.suspected == 1
    for replica in replicas._all:
        replica.is_silent = False
    assert model.generate("0", num_predict=3, ignore_eos=True).token_ids
    assert model.num_replicas == 1


def test_requests_wait_for_the_first_replica_and_hear_why_there_is_none(replicas: Replicas) -> None:
    model = replicas.model()
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(model.generate("0", num_predict=3, ignore_eos=True))
    )
    thread.start()
    time.sleep(0.2)
    (replica,) = replicas.add(1)
    thread.join()
    assert found[0].token_ids
    replicas.kill(replica)
    replicas.extra.append(
        Member(
            name="b", address=("", 0), node="n", pid=1, places=1, problem=("OutOfMemoryError", "needs more")
        )
    )
    with pytest.raises(OutOfMemoryError, match="needs more"):
        model.generate("0")


class Nowhere:
    """Replicas of which none runs, with a reason why."""

    def __init__(self) -> None:
        self.is_closed, self.num_open, self.trouble, self.failed_loads = False, 0, "", 0
        self.problem: ChaskiError | None = NoReplicaError("no free cores")
        self.moved_at = time.monotonic()
        self.waiting: list[Callable[[], None]] = []
        self.later = self.waiting.append

    def any_peer(self) -> None:
        return None


def test_full_nodes_end_no_answer_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere, replies = Nowhere(), list[Any]()
    fresh, begun = (RoutedAnswer(cast(Any, nowhere), Generate("0", {}), replies.append) for _ in range(2))
    (event,) = begun._delivered.new(Text("a", (1,)))
    assert event
    begun.begin()
    assert (len(nowhere.waiting), replies) == (1, [])
    nowhere.failed_loads = 9
    fresh.begin()
    begun.begin()
    assert [str(reply) for reply in replies] == ["no free cores"]
    assert len(nowhere.waiting) == 2
    monkeypatch.setattr("chaski.cluster.answers._LONGEST_WAIT", -1.0)
    nowhere.problem, nowhere.failed_loads = None, 0
    begun.begin()
    assert len(nowhere.waiting) == 3
    monkeypatch.setattr("chaski.cluster.answers._LONGEST_PAUSE", -1.0)
    begun.begin()
    assert isinstance(replies[1], NoReplicaError)


def test_a_verdict_ends_with_the_replica_that_gave_it(replicas: Replicas) -> None:
    verdict = Member(
        name="b", address=("", 0), node="n", pid=1, places=1, problem=("GGUFError", "it is cut off")
    )
    replicas.extra.append(verdict)
    model = replicas.model()
    with pytest.raises(GGUFError, match="cut off"):
        model.generate("0")
    replicas.extra.clear()
    wait_until(lambda: model._replicas.problem is None)
    threading.Timer(0.5, replicas.add).start()
    assert model.generate("0", num_predict=3, ignore_eos=True).token_ids


@pytest.mark.long
def test_requests_wait_for_replicas_that_die_while_they_load(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaski.cluster.replica_set._MISSING", 0.1)
    model = replicas.model()

    def die(count: int) -> None:
        for number in range(count):
            loading = Member(name=f"{count} {number}", address=("", 0), node="n", pid=1, places=1, share=0.5)
            replicas.extra.append(loading)
            time.sleep(1.1)  # two rounds
            replicas.extra.clear()

    dying = threading.Thread(target=die, args=(2,))
    dying.start()
    threading.Timer(3.5, replicas.add).start()
    assert model.generate("0", num_predict=3, ignore_eos=True).token_ids
    dying.join()
    for replica in list(replicas._all):
        replicas.kill(replica)
    dying = threading.Thread(target=die, args=(6,))
    dying.start()
    with pytest.raises(NoReplicaError, match="failed 5 times in a row: the logs"):
        model.generate("0")
    dying.join()


def test_a_leaving_replica_ends_what_it_has_and_takes_no_more(replicas: Replicas) -> None:
    leaving, staying = replicas.add(2)
    model = replicas.model()
    wait_until(lambda: model.num_replicas == 2)
    streams = [model.stream("once", **{**LONG, "num_predict": 900}) for _ in range(2)]
    for stream in streams:
        next(stream)
    replicas.leave(leaving)
    wait_until(lambda: model.num_replicas == 1)
    before = answered(leaving)
    model.generate_many(["0"] * 4, num_predict=3, ignore_eos=True)
    assert answered(leaving) == before == 1
    assert answered(staying) == 5
    for stream in streams:
        *_, done = stream
        assert isinstance(done, Done)
        assert done.generated_tokens == 900


@pytest.mark.long
def test_all_replicas_are_replaced_and_every_answer_goes_on(path: Path, replicas: Replicas) -> None:
    old = replicas.add(2)
    model = replicas.model(bounds=Bounds(2, 2))
    wait_until(lambda: model.num_replicas == 2)
    streams = [model.stream("once", **{**LONG, "num_predict": 900}) for _ in range(4)]
    before = [next(stream) for stream in streams]
    generation = model.replace()
    assert generation == 1
    wait_until(lambda: model.replacement(generation).num_new == 2 and model.num_replicas == 2)
    now = model.replacement(generation)
    assert (now.num_old, now.is_done, now.problem) == (2, False, None)
    asked = list(map(answered, old))
    assert len(model.generate_many(["0"] * 4, num_predict=3, ignore_eos=True)) == 4
    assert list(map(answered, old)) == asked
    with chaski.load(path, threads=1, context=1024) as alone:
        expected = alone.generate("once", **{**LONG, "num_predict": 900}).text
    for first, stream in zip(before, streams, strict=True):
        assert "".join(event.text for event in (first, *stream) if isinstance(event, Text)) == expected
    for replica in old:
        replicas.kill(replica)
    wait_until(lambda: model.replacement(generation).is_done)
    assert model.replace() == 2


def test_a_new_replica_that_cannot_load_the_model_is_told_of(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas.add(1)
    model = replicas.model()
    wait_until(lambda: len(model.replicas()) == 1)
    problem = "GGUFError", "it is cut off"
    failed = Member(name="b", address=("", 0), node="n", pid=1, places=1, problem=problem, generation=1)
    monkeypatch.setattr(replicas, "replace", lambda generation: replicas.extra.append(failed))
    generation = model.replace()
    wait_until(lambda: model.replacement(generation).problem is not None)
    assert (model.replacement(generation).num_old, model.replacement(generation).is_done) == (1, False)
    assert model.generate("0", num_predict=3, ignore_eos=True).token_ids


@pytest.mark.long
def test_more_replicas_are_wanted_while_places_are_missing(replicas: Replicas) -> None:
    replicas.add(1)
    model: ClusterModel = replicas.model(bounds=Bounds(1, 3))
    is_over = threading.Event()

    def load() -> None:
        while not is_over.is_set():
            model.generate_many(["0"] * 8, **LONG)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        wait_until(lambda: replicas.wanted == [2], 20)
    finally:
        is_over.set()
        thread.join()
