"""The loop that compares what servers want with what runs, and acts on the difference.

`plan.py` decides, and `applications.py` observes Ray Serve and acts on it. Every action has its own thread,
so no model waits for the deployment or the end of another.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Protocol

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from chaski.cluster.backoff import Backoff
from chaski.cluster.entries import Claim, Listed
from chaski.cluster.footprint import Footprint
from chaski.cluster.members import Member
from chaski.cluster.memory import NodeMemory
from chaski.cluster.plan import Application, NodeRoom, Plan, Wanted, holds, plan
from chaski.cluster.replica_options import ReplicaOptions

__all__ = ["GRACE", "Applications", "Leases", "Reconciler", "Seen"]

_log = logging.getLogger(__name__)

GRACE = 300.0
"""Seconds for which an application runs that no server wants. A server that starts again can adopt it."""

# A model is refused, or deployed again, if nothing has changed for this time: Ray and Serve report late.
# It is also refused after the longer time without a place.
_SETTLED, _REFUSED = 2.0, 10.0
# Maximum seconds for which Ray frees the resources of an application that Serve has deleted.
_FREEING = 30.0
# Shortest and longest pause before an application is deployed again whose replicas have all failed to start.
_AGAIN = 4.0, 60.0
# Seconds after which a replica counts as never placed if its application is being deleted.
_PLACED = 3.0


class Seen(Struct, frozen=True):
    """An application as Serve reports it. `num_replicas` run or start.

    has_failed  none runs, and Serve may start no more, because some have ended before they had loaded
    """

    num_replicas: int
    is_leaving: bool
    has_failed: bool = False


class Applications(Protocol):
    """The functions of `applications.py`."""

    def seen(self) -> dict[str, Seen]: ...

    def deploy(
        self,
        options: ReplicaOptions,
        key: bytes,
        shards: int,
        reserved: Mapping[str, Any],
        number: int,
        generation: int,
    ) -> None: ...

    def delete(self, name: str) -> None: ...

    def end_unplaced(self, name: str, listed: Collection[str]) -> None: ...


class Leases(Protocol):
    """The part of `Directory` that the loop uses."""

    key: bytes

    def renew(self, server: str, claims: Sequence[Claim]) -> Listed | None: ...

    def forget(self, model: str) -> None: ...


class _Wish:
    """A model that this server wants, and what Serve was told about it."""

    def __init__(self, options: ReplicaOptions, reserves: bool) -> None:
        self.options = options
        self.number = self.generation = 0
        self.idle_for: float | None = None
        self.footprint = Footprint(options, reserves)
        self.chosen_for: Sequence[NodeMemory] = ()
        self.told: tuple[int, int] | None = None
        self.again = Backoff(*_AGAIN)
        self.again_at = 0.0
        self.refused_since: float | None = None
        self.shortage: tuple[str, str] | None = None
        self.refusal: str | None = None


class Reconciler:
    """What one server wants in a cluster, and the loop that makes it so.

    server    the name of the server; a server that starts again with the same name replaces its predecessor
    reserves  as in `Footprint`
    tell      sends a message to the server; called from several threads
    """

    def __init__(
        self,
        directory: Leases,
        serving: Applications,
        server: str,
        reserves: bool,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self._directory = directory
        self._serving = serving
        self._server = server
        self._reserves = reserves
        self._tell = tell
        self._lock = threading.Lock()
        self._wishes: dict[str, _Wish] = {}
        self._serial = 0
        self._dropped: set[str] = set()
        self._ending: set[str] = set()
        self._listed: Listed | None = None
        self._nodes: Sequence[NodeMemory] = ()
        self._running: dict[str, threading.Thread] = {}
        self._unwanted: dict[str, float] = {}
        self._leaving: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        self._ever_listed: set[str] = set()
        self._before: Mapping[str, Application] = {}
        self._ended: dict[str, tuple[float, Application]] = {}
        self._state: object = None
        self._changed_at = monotonic()

    def want(self, wanted: Sequence[Mapping[str, Any]], ending: Sequence[str], serial: int = 0) -> None:
        """Replace everything that the server wants.

        serial  a number of this message, which `members` returns
        wanted  for each model: its `options`, the `number` of replicas and their least `generation`
        ending  applications whose end the server waits for: it gets `ended` for each
        """
        with self._lock:
            before, self._wishes = self._wishes, {}
            for each in wanted:
                options = ReplicaOptions.of(each["options"])
                wish = before.get(options.model) or _Wish(options, self._reserves)
                wish.number, wish.generation = each["number"], each["generation"]
                self._wishes[options.model] = wish
            self._dropped |= before.keys() | set(ending)
            self._dropped -= self._wishes.keys()
            self._ending |= set(ending)
            self._serial = serial

    def note_idle(self, idle: Mapping[str, float | None]) -> None:
        """Note for how many seconds each model has been idle, or None while it is in use."""
        with self._lock:
            for name, seconds in idle.items():
                if name in self._wishes:
                    self._wishes[name].idle_for = seconds

    @property
    def is_calm(self) -> bool:
        """True if no wanted model is in use and nothing is being changed."""
        with self._lock:
            wishes = list(self._wishes.values())
        return not self._running and all(wish.idle_for is not None for wish in wishes)

    def members(self) -> tuple[int, dict[str, list[dict[str, Any]]] | None]:
        """Renew the server's lease; return the replicas of all its models, or None if they are unknown now.

        A model that has no place is described as a replica with that problem. The first result is the serial
        of what the server wants, by which it recognizes older replies.
        """
        with self._lock:
            wishes, serial = dict(self._wishes), self._serial
        claims = [Claim(name, wish.options.label, self._parts(wish)) for name, wish in wishes.items()]
        self._listed = listed = self._directory.renew(self._server, claims)
        if listed is None:
            return serial, None
        return serial, {
            name: [to_builtins(each) for each in (*listed.members.get(name, ()), *_unplaced(name, wish))]
            for name, wish in wishes.items()
        }

    def remove(self, name: str) -> str | None:
        """Delete an application that no server wants; return why it may not be deleted, or None."""
        listed, seen = self._listed, self._serving.seen()
        if name not in seen:
            return f"no application is named {name!r:.100}; the cluster has {', '.join(seen) or 'none'}"
        if listed is None:
            return "the cluster's directory does not answer; try again"
        if servers := self._servers(name, listed):
            return f"{', '.join(servers)} wants {name}; unload the model there (`chaski stop MODEL`)"
        self._start(name, lambda: self._serving.delete(name))
        return None

    def round(self, nodes: Sequence[NodeMemory], rooms: Sequence[NodeRoom]) -> None:
        """Compare and act once.

        nodes  what the nodes have
        rooms  what is free there
        """
        seen, listed = self._serving.seen(), self._listed
        with self._lock:
            wishes, self._nodes = dict(self._wishes), nodes
        if listed is None:
            return
        self._note(seen, listed, nodes)
        running = [self._application(name, each, listed, wishes) for name, each in seen.items()]
        ended = self._still_freed(running, rooms)
        ready = {name: wish for name, wish in wishes.items() if self._is_ready(name, wish, nodes)}
        wanted = [
            Wanted(name, wish.number, self._parts(wish), wish.options.per_node, wish.idle_for)
            for name, wish in ready.items()
        ]
        made = plan(rooms, [*running, *ended], wanted, GRACE)
        self._refuse(made, wishes)
        self._act(made, seen, ready, listed)
        self._tell({"applications": [_shown(each, listed) for each in running]})

    def _note(self, seen: Mapping[str, Seen], listed: Listed, nodes: Sequence[NodeMemory]) -> None:
        """Note since when each application is unwanted or leaves, and when something changed."""
        now = monotonic()
        self._unwanted = {
            name: self._unwanted.get(name, now) for name in seen if not self._servers(name, listed)
        }
        self._leaving = {name: self._leaving.get(name, now) for name, each in seen.items() if each.is_leaving}
        self._failed = {name: self._failed.get(name, now) for name, each in seen.items() if each.has_failed}
        self._ever_listed |= {each.name for members in listed.members.values() for each in members}
        state = sorted(seen.items(), key=lambda item: item[0]), [node.label for node in nodes]
        if state != self._state:
            self._state, self._changed_at = state, now
        for name in self._ending - seen.keys() - self._running.keys():
            self._ending.discard(name)
            self._directory.forget(name)
            self._tell({"ended": name})

    def _still_freed(
        self, running: Sequence[Application], rooms: Sequence[NodeRoom]
    ) -> Sequence[Application]:
        """Return the applications that Serve has deleted while Ray still reports their resources as used."""
        now, names = monotonic(), {each.name for each in running}
        for name in self._before.keys() - names:
            self._ended[name] = now, replace(self._before[name], is_leaving=True)
        self._before = {each.name: each for each in running}
        self._ended = {
            name: (since, each)
            for name, (since, each) in self._ended.items()
            if name not in names and now - since < _FREEING and holds(each, rooms, running)
        }
        return [each for _, each in self._ended.values()]

    def _application(self, name: str, seen: Seen, listed: Listed, wishes: Mapping[str, _Wish]) -> Application:
        living = [each for each in listed.members.get(name, ()) if each.problem is None]
        known = listed.known.get(name)
        parts = self._parts(wishes[name]) if name in wishes else () if known is None else known.parts
        return Application(
            name=name,
            parts=parts,
            places=tuple(_nodes_of(each)[: len(parts)] for each in living),
            num_starting=max(0, seen.num_replicas - sum(not each.is_leaving for each in living)),
            is_leaving=seen.is_leaving or (name in self._running and name not in wishes),
            wanted_by=self._servers(name, listed),
            unwanted_for=monotonic() - self._unwanted.get(name, monotonic()),
        )

    def _servers(self, name: str, listed: Listed) -> tuple[str, ...]:
        """Return the servers that want an application. What this one wants may be newer than its lease."""
        own = {self._server} if name in self._wishes else set()
        others = {
            server
            for server, claims in listed.claims.items()
            if server != self._server and any(claim.application == name for claim in claims)
        }
        return tuple(sorted(own | others))

    def _parts(self, wish: _Wish) -> Any:
        return wish.footprint.parts(self._nodes) if wish.chosen_for else ()

    def _is_ready(self, name: str, wish: _Wish, nodes: Sequence[NodeMemory]) -> bool:
        """Return whether the needs of a model are known and some nodes could meet them. Note a shortage."""
        if nodes and wish.chosen_for != nodes and wish.told is None:

            def choose() -> None:
                wish.footprint.choose(nodes)
                wish.chosen_for = nodes

            self._start(name, choose)
        if not wish.chosen_for:
            return False
        wish.shortage = wish.footprint.shortage(nodes)
        return wish.footprint.fits_somewhere(nodes)

    def _refuse(self, made: Plan, wishes: Mapping[str, _Wish]) -> None:
        now = monotonic()
        for name, wish in wishes.items():
            message = made.refused.get(name)
            if message is None:
                wish.refused_since = wish.refusal = None
                continue
            wish.refused_since = wish.refused_since or now
            if now - self._changed_at >= _SETTLED or now - wish.refused_since >= _REFUSED:
                wish.refusal = message

    def _act(self, made: Plan, seen: Mapping[str, Seen], ready: Mapping[str, _Wish], listed: Listed) -> None:
        if made.unload:
            self._tell({"unload": made.unload})
        dropped = [name for name in self._dropped & seen.keys() if not self._servers(name, listed)]
        for name in {*made.delete, *dropped}:
            if not seen[name].is_leaving:
                _log.info("the application %s ends, because no server wants it", name)
                self._start(name, partial(self._serving.delete, name))
        for name, since in self._leaving.items():
            if monotonic() - since >= _PLACED:
                self._serving.end_unplaced(name, self._ever_listed)
        for name, number in made.numbers.items():
            self._deploy(name, ready[name], number, seen.get(name), listed)

    def _deploy(self, name: str, wish: _Wish, number: int, seen: Seen | None, listed: Listed) -> None:
        """Tell Serve the number of replicas and their generation, if they changed or Serve has given up."""
        told, generation = wish.told or (0, 0)
        # A restarted server does not know the current generation.
        found = [each.generation for each in listed.members.get(name, ())]
        running = 0 if seen is None else seen.num_replicas
        wanted = min(wish.number, max(number, running, told)), max(wish.generation, *found, generation)
        if any(each.share == 1 and each.problem is None for each in listed.members.get(name, ())):
            wish.again.reset()
        if name in self._failed:
            if monotonic() < max(wish.again_at, self._failed[name] + _SETTLED):
                return
            # For Serve, another generation is another version, which has not failed yet.
            wanted = wanted[0], wanted[1] + 1
        elif wanted == wish.told and seen is not None:
            return
        shards, reserved = wish.footprint.shards, wish.footprint.reservation(self._nodes)

        def deploy() -> None:
            if self._wishes.get(name) is wish:
                self._serving.deploy(wish.options, self._directory.key, shards, reserved, *wanted)
                wish.told = wanted
                wish.again_at = monotonic() + wish.again.pause()

        self._start(name, deploy)

    def _start(self, name: str, act: Callable[[], None]) -> None:
        """Act on an application in a thread, unless an action on it is running."""
        if name in self._running:
            return

        def run() -> None:
            try:
                act()
            except Exception as error:  # Ray has errors of many kinds
                _log.info("an action on %s failed and is tried again: %s", name, error)
            finally:
                del self._running[name]

        self._running[name] = threading.Thread(target=run, name="chaski-application", daemon=True)
        self._running[name].start()


def _nodes_of(member: Member) -> tuple[str, ...]:
    """Return the nodes of a replica's parts."""
    return tuple(node for node, _ in member.shards) if member.shards else (member.node,)


def _unplaced(name: str, wish: _Wish) -> list[Member]:
    problem = wish.shortage or (wish.refusal and ("NoReplicaError", wish.refusal))
    if not problem:
        return []
    return [
        Member(
            name=f"{name} without a node",
            address=("", 0),
            node="",
            pid=0,
            places=0,
            share=0.0,
            problem=problem,
        )
    ]


def _shown(application: Application, listed: Listed) -> dict[str, Any]:
    """Describe an application for operators."""
    known = listed.known.get(application.name)
    return {
        "name": application.name,
        "model": "" if known is None else known.model,
        "wanted_by": application.wanted_by,
        "replicas": len(application.places),
        "starting": application.num_starting,
        "nodes": sorted({label for place in application.places for label in place}),
        "cores": sum(part.cores for part in application.parts),
        "memory": sum(part.memory for part in application.parts),
        "is_leaving": application.is_leaving,
        "seconds_left": None if application.wanted_by else max(0.0, GRACE - application.unwanted_for),
    }
