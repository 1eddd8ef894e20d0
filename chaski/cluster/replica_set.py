"""The caller's view of a model's replicas: connections, and the assignment of requests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import count
from time import monotonic

from msgspec import Struct, field

from chaski.cluster.autoscaling import Bounds, Scaler
from chaski.cluster.backoff import Backoff
from chaski.cluster.members import Member, Members
from chaski.cluster.peer import Patience, Peer
from chaski.cluster.replicas import Losses, Place, ReplicaState
from chaski.cluster.router import Router
from chaski.cluster.routing import Speed
from chaski.errors import ChaskiError, WorkerError, error_class
from chaski.ml.backend import ProgressCallback
from chaski.runner.adapters.adapter_calls import LateAdapters
from chaski.runner.channels.messages import ReplyOrError
from chaski.runner.prefix.block_calls import Blocks, ListBlocks
from chaski.runner.prefix.naming import BLOCK

__all__ = ["Replacement", "ReplicaSet"]

_log = logging.getLogger(__name__)

_ROUND = 0.5
# Rounds between two questions whether a replica lives, and between two queries of its blocks.
_SIGN_ROUNDS, _BLOCK_ROUNDS = 2, 4
# Seconds for which a loading replica is missing in the directory before it counts as dead. A directory that
# was restarted is empty for a second.
_MISSING = 4.0
# Assumed speed until answers were measured.
_FIRST_SPEED = Speed(prefill=300.0, answer_seconds=5.0)


class Replacement(Struct, frozen=True):
    """Progress of a replacement: numbers of new replicas, active old ones and old ones finishing answers.

    is_done  True when no old replica is left and the required number of new ones runs
    problem  why a new replica cannot load the model; None if none says so
    """

    num_new: int
    num_old: int
    is_done: bool
    problem: ChaskiError | None


class _Attempts(Struct):
    """Attempts to connect to a replica that is listed and cannot be reached, or was lost."""

    backoff: Backoff = field(default_factory=Backoff)
    next_at: float = 0.0
    is_trying: bool = False
    is_reported: bool = False


class _Load(Struct):
    """A replica that loads the model: the loaded share, and when it was last listed."""

    share: float
    seen_at: float


class ReplicaSet:
    """Connects to new replicas and removes lost ones. Safe to use from several threads.

    bounds        limits of the number of replicas
    router        routes by blocks of the prefix cache; None creates one
    progress      called with the loaded share while the first replicas load
    moved_at      time of the last observed loading progress, on `time.monotonic`
    failed_loads  number of replicas in a row that died while they loaded the model
    """

    def __init__(
        self,
        members: Members,
        bounds: Bounds | None = None,
        patience: Patience | None = None,
        progress: ProgressCallback = lambda share: None,
        router: Router | None = None,
    ) -> None:
        self._members = members
        self._patience = Patience() if patience is None else patience
        self._lock = threading.Condition()
        self._router = Router(BLOCK) if router is None else router
        self._peers: dict[int, tuple[Member, Peer]] = {}
        self._numbers: dict[str, int] = {}
        self._new_numbers = count()
        self._attempts: dict[str, _Attempts] = {}
        self._leaving: set[int] = set()
        self.adapters = LateAdapters()
        self._problem: ChaskiError | None = None
        self._bounds = Bounds() if bounds is None else bounds
        self._scaler = Scaler(self._bounds, monotonic())
        self._progress = progress
        self._loading: dict[str, _Load] = {}
        self._generation = 0
        self.moved_at = monotonic()
        self.failed_loads = 0
        self._is_closed = threading.Event()
        self._waiting: list[Callable[[], None]] = []
        self._num_woken = 0
        self.losses = Losses()
        self._thread = threading.Thread(target=self._watch, name="chaski-replicas", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._is_closed.is_set()

    @property
    def num_open(self) -> int:
        """The number of replicas that take requests."""
        with self._lock:
            return len(self._router.replicas)

    @property
    def num_waiting(self) -> int:
        """The number of calls that wait for a replica."""
        return max(len(self._waiting), self._num_woken)

    @property
    def problem(self) -> ChaskiError | None:
        """Why no replica could load the model, or None while one still might."""
        with self._lock:
            return None if self._peers else self._problem

    @property
    def trouble(self) -> str:
        """Where to look for the reason why there is no replica."""
        return "the logs of the nodes may say why" if self.failed_loads else ""

    def states(self) -> list[ReplicaState]:
        """Describe all replicas."""
        with self._lock:
            return [
                ReplicaState(
                    member.name,
                    member.node,
                    member.pid,
                    member.places,
                    self._router.load(number).answers if number in self._router.replicas else 0,
                    number in self._leaving,
                    member.generation,
                    member.shards,
                )
                for number, (member, _) in self._peers.items()
            ]

    def take(self, blocks: Sequence[int], prompt_tokens: int, without: Sequence[int] = ()) -> Place | None:
        """Choose a replica for a request and assign it until `ended`. Return None if there is no replica.

        Replicas in `without` are chosen only if there are no others.
        """
        with self._lock:
            if not self._router.replicas:
                return None
            others = set(self._router.replicas) - set(without)
            chosen = self._router.choose(blocks, prompt_tokens, without if others else ())
            tokens = self._router.given(chosen, blocks, prompt_tokens, monotonic())
            member, peer = self._peers[chosen.replica]
            return Place(chosen.replica, peer, tokens, member.name, member.node)

    def any_peer(self) -> Peer | None:
        """Return the least busy replica, for a call that takes no place.

        Returns None if there is no replica.
        """
        with self._lock:
            numbers = self._router.replicas
            if not numbers:
                return None
            least = min(numbers, key=lambda each: self._router.load(each).answers)
            return self._peers[least][1]

    def peers(self) -> list[Peer]:
        """Return all replicas."""
        with self._lock:
            return [peer for _, peer in self._peers.values()]

    def computed(self, place: Place) -> None:
        """Record that the prompt of a request is computed."""
        with self._lock:
            self._router.computed(place.replica, place.tokens)

    def ended(self, place: Place) -> None:
        """Record that a request has ended, successfully or not."""
        with self._lock:
            self._router.ended(place.replica)

    def num_answers(self, place: Place) -> int:
        """Return the number of the replica's requests, or 0 if it is gone."""
        with self._lock:
            return self._router.load(place.replica).answers if place.replica in self._router.replicas else 0

    def measured(self, place: Place, prefill: float | None, answer_seconds: float) -> None:
        """Record the measured speed of an answer."""
        with self._lock:
            self._router.measured(place.replica, prefill, answer_seconds)

    def later(self, call: Callable[[], None]) -> None:
        """Call `call` from another thread when new replicas may be available."""
        with self._lock:
            self._waiting.append(call)

    def replace(self) -> int:
        """Replace all replicas with new ones, a few at a time; return the new generation.

        Raises ClusterError if Ray cannot be reached now.
        """
        with self._lock:
            self._problem = None
            generation = 1 + max((member.generation for member, _ in self._peers.values()), default=0)
            self._generation = generation
        self._members.replace(generation)
        return generation

    def replacement(self, generation: int) -> Replacement:
        """Return the progress of replacing all replicas older than a generation."""
        with self._lock:
            num_new = sum(member.generation >= generation for member, _ in self._peers.values())
            num_old = len(self._peers) - num_new
            is_done = num_old == 0 and num_new >= self._bounds.least
            return Replacement(num_new, num_old, is_done, self._problem)

    def close(self) -> None:
        """End the connections and the replicas."""
        self._is_closed.set()
        self._thread.join()
        for peer in self.peers():
            peer.close()
        self._members.close()
        self._wake()

    def _watch(self) -> None:
        number = 0
        while not self._is_closed.is_set():
            try:
                self._meet()
                if number % _SIGN_ROUNDS == 0:
                    for peer in self.peers():
                        peer.check(self._patience)
                if number % _BLOCK_ROUNDS == 0:
                    self._ask_for_blocks()
                self._scale()
                self._wake()
            except Exception:
                _log.exception("watching the replicas failed")
            number += 1
            self._is_closed.wait(_ROUND)

    def _meet(self) -> None:
        """Connect to new replicas."""
        members = self._members.list()
        if members is None:
            return
        self._judge(members)
        for member in members:
            if member.problem is None and member.share < 1:
                self._note_loading(member)
                continue
            self._loading.pop(member.name, None)
            if member.problem is not None:
                continue
            if self._numbers.get(member.name) not in self._peers:
                self._try_to_connect(member)
            elif member.is_leaving:
                self._let_leave(self._numbers[member.name])
                # It makes room for another replica, for which requests wait.
                self.moved_at = monotonic()
        listed = {member.name for member in members}
        self._attempts = {name: each for name, each in self._attempts.items() if name in listed}

    def _judge(self, members: Sequence[Member]) -> None:
        """Note why the model cannot be loaded, as long as a listed replica says so, and count dead loads."""
        now = monotonic()
        for member in members:
            if (load := self._loading.get(member.name)) is not None:
                load.seen_at = now
        died = [name for name, load in self._loading.items() if now - load.seen_at > _MISSING]
        problems = [
            member.problem
            for member in members
            if member.problem is not None and (not member.node or member.generation >= self._generation)
        ]
        with self._lock:
            self._problem = None
            if problems:
                kind, message = problems[0]
                self._problem = error_class(kind)(message)
        for name in died:
            del self._loading[name]
        self.failed_loads += len(died)

    def _try_to_connect(self, member: Member) -> None:
        """Connect to a listed replica, with pauses between attempts.

        A replica that was lost may have a broken link, or it has just died. No request waits for it.
        """
        attempts = self._attempts.setdefault(member.name, _Attempts())
        if attempts.is_trying or monotonic() < attempts.next_at:
            return
        if member.name not in self._numbers and not attempts.is_reported:
            self._connect(member, attempts)
            return
        attempts.is_trying = True

        def connect() -> None:
            try:
                self._connect(member, attempts)
                self._wake()
            except Exception:
                _log.exception("cannot reconnect to replica %s", member.name)
            finally:
                attempts.is_trying = False

        threading.Thread(target=connect, name="chaski-returning", daemon=True).start()

    def _connect(self, member: Member, attempts: _Attempts) -> None:
        if member.is_leaving:
            return
        number = next(self._new_numbers)
        try:
            peer = Peer(member.name, member.address, self._members.key, lambda: self._lose(number))
        except WorkerError as error:
            if not attempts.is_reported:
                _log.warning("%s; it is tried again until it answers or is gone", error)
            attempts.is_reported, attempts.next_at = True, monotonic() + attempts.backoff.pause()
            return
        self._attempts.pop(member.name, None)
        self.adapters.load(peer.start)
        self.failed_loads = 0
        with self._lock:
            self._numbers[member.name] = number
            self._peers[number] = member, peer
            self._router.join(number, member.places, _FIRST_SPEED)
        if peer.is_lost or self.is_closed:  # meanwhile
            peer.close()
            self._lose(number)
        _log.info("replica %s of node %s answers", member.name, member.node)

    def _note_loading(self, member: Member) -> None:
        load = self._loading.setdefault(member.name, _Load(-1.0, monotonic()))
        if member.share != load.share:
            load.share = member.share
            self.moved_at = monotonic()
            self._progress(max(each.share for each in self._loading.values()))

    def _let_leave(self, number: int) -> None:
        with self._lock:
            if number in self._peers and number not in self._leaving:
                self._leaving.add(number)
                self._router.leave(number)

    def _lose(self, number: int) -> int:
        """Remove a replica; return the number of its running answers."""
        with self._lock:
            num_answers = self._router.load(number).answers if number in self._router.replicas else 0
            self._router.leave(number)
            self._leaving.discard(number)
            self._peers.pop(number, None)
        return num_answers

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._num_woken = len(waiting)
        for call in waiting:
            call()
        self._num_woken = 0

    def _ask_for_blocks(self) -> None:
        with self._lock:
            peers = [(number, self._peers[number][1]) for number in self._router.replicas]
        if len(peers) > 1:
            for number, peer in peers:
                peer.start(ListBlocks(), lambda reply, number=number: self._report(number, reply))  # type: ignore[misc]

    def _report(self, number: int, reply: ReplyOrError) -> None:
        if isinstance(reply, Blocks):
            with self._lock:
                if number in self._router.replicas:
                    self._router.index.report(number, reply.numbers, monotonic())

    def _scale(self) -> None:
        if self._bounds.least == self._bounds.most:
            return
        with self._lock:
            loads = [self._router.load(number) for number in self._router.replicas]
        if not loads:
            return
        before = self._scaler.number
        wanted = self._scaler.wanted(sum(load.answers for load in loads), loads[0].places, monotonic())
        if wanted != before:
            _log.info("the wanted number of replicas is %d instead of %d", wanted, before)
            self._members.scale(wanted)
