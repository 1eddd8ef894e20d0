"""The plan of a cluster: what to deploy, unload, delete and refuse.

It is a pure function of what is wanted, what runs and what is free. `reconciler.py` observes and acts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

__all__ = ["Amount", "Application", "NodeRoom", "Plan", "Wanted", "holds", "plan"]

# Ray counts resources in steps of 0.0001.
_STEP = 2e-4


class Amount(Struct, frozen=True):
    """Resources of a node, or of one part of a replica: cores, bytes of memory, GPUs."""

    cores: float = 0.0
    memory: int = 0
    gpus: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cores + other.cores, self.memory + other.memory, self.gpus + other.gpus)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.cores - other.cores, self.memory - other.memory, self.gpus - other.gpus)

    def covers(self, other: Amount) -> bool:
        """Return whether this is enough for `other`."""
        return self.has_devices(other) and self.memory >= other.memory

    def has_devices(self, other: Amount) -> bool:
        """Return whether the cores and GPUs are enough for `other`."""
        return self.cores + _STEP >= other.cores and self.gpus + _STEP >= other.gpus


class NodeRoom(Struct, frozen=True):
    """A node by label: what Ray may assign there, and how much of that is free."""

    label: str
    total: Amount
    free: Amount


class Application(Struct, frozen=True):
    """A model's replicas that run.

    parts         what each part of a replica reserves; parts are on different nodes. Empty if unknown
    places        for each known replica, the nodes of its parts
    num_starting  replicas that are being started, on nodes that are not known yet
    is_leaving    True while it is being deleted
    wanted_by     servers that want it
    unwanted_for  seconds since any server wanted it
    """

    name: str
    parts: tuple[Amount, ...]
    places: tuple[tuple[str, ...], ...] = ()
    num_starting: int = 0
    is_leaving: bool = False
    wanted_by: tuple[str, ...] = ()
    unwanted_for: float = 0.0


class Wanted(Struct, frozen=True):
    """A model that this server wants.

    number    of replicas
    per_node  maximum replicas on a node
    idle_for  seconds since its last request ended; None while it is in use
    """

    name: str
    number: int
    parts: tuple[Amount, ...]
    per_node: int = 1
    idle_for: float | None = None


class Plan(Struct):
    """What to do.

    numbers  replicas that each placed application should have now
    unload   models of this server to unload, because a model in use needs their place
    delete   applications to delete that no server wants
    waiting  models that wait for the place of others
    refused  for each model in use without a place: the message
    """

    numbers: dict[str, int] = field(default_factory=dict)
    unload: list[str] = field(default_factory=list)
    delete: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def plan(
    nodes: Sequence[NodeRoom],
    applications: Sequence[Application],
    wanted: Sequence[Wanted],
    grace: float,
) -> Plan:
    """Return what to do next.

    Each wanted model gets one replica before any gets a second one. A model in use takes the place of
    applications that no server wants, then of idle models, the least recently used first, and only as many as
    it needs. Applications that no server wants are deleted after `grace` seconds.
    """
    made = Plan()
    leaving = {each.name for each in applications if each.is_leaving}
    now = _Room(nodes, applications)
    soon = now.copy()
    for name in leaving:
        soon.release(name)
    victims = _Victims(applications, wanted)
    new: set[str] = set()
    for each in victims.orphans:
        if each.unwanted_for >= grace:
            victims.take(each.name, made)
            soon.release(each.name)
    for want in wanted:
        if want.name in leaving:
            made.waiting.append(want.name)
        elif now.places[want.name]:
            made.numbers[want.name] = len(now.places[want.name])
        elif now.place(want):
            soon.place(want)
            made.numbers[want.name] = 1
            new.add(want.name)
        elif want.idle_for is None:
            _make_room(want, soon, victims, made)
    if not made.waiting and not made.refused:
        for want in wanted:
            number = made.numbers.get(want.name, 0)
            # Ray may put this replica on the nodes that are planned for the first one of another model.
            while new <= {want.name} and 0 < number < want.number and now.place(want):
                number += 1
                made.numbers[want.name] = number
    return made


def holds(ended: Application, nodes: Sequence[NodeRoom], others: Sequence[Application]) -> bool:
    """Return whether an ended application may still hold resources: more is used than others reserve."""
    unknown = _used(nodes)
    _reserve(others, unknown)
    return any(
        label in unknown and unknown[label].covers(part)
        for place in ended.places
        for part, label in zip(ended.parts, place, strict=False)
    )


def _make_room(want: Wanted, soon: _Room, victims: _Victims, made: Plan) -> None:
    """Choose victims for a model in use without a place. `soon` is the room once all chosen ones are gone."""
    if not soon.place(want):
        chosen = victims.choose(want, soon)
        if chosen is None:
            made.refused[want.name] = soon.refusal(want)
            return
        for name in chosen:
            victims.take(name, made)
            soon.release(name)
        soon.place(want)
    made.waiting.append(want.name)


class _Victims:
    """Applications that may be removed to make room, the first ones first."""

    def __init__(self, applications: Sequence[Application], wanted: Sequence[Wanted]) -> None:
        own = {want.name: want for want in wanted}
        running = [each for each in applications if not each.is_leaving]
        self.orphans = sorted(
            (each for each in running if not each.wanted_by and each.name not in own),
            key=lambda each: -each.unwanted_for,
        )
        others = {each.name for each in running if len(each.wanted_by) > 1}
        idle = sorted(
            (own[each.name] for each in running if each.name in own and each.name not in others),
            key=lambda want: -(want.idle_for or 0.0),
        )
        self._is_own = own.keys()
        self._names = [each.name for each in self.orphans]
        self._names += [want.name for want in idle if want.idle_for is not None]

    def choose(self, want: Wanted, room: _Room) -> list[str] | None:
        """Return the applications whose removal makes room for `want`, or None if there are none."""
        tried, chosen = room.copy(), []
        for name in self._names:
            tried.release(name)
            chosen.append(name)
            if tried.find(want) is not None:
                break
        else:
            return None
        # Some of them may be on other nodes. Keep those, the most recently used first.
        for name in reversed(chosen[:-1]):
            fewer = room.copy()
            for other in chosen:
                if other != name:
                    fewer.release(other)
            if fewer.find(want) is not None:
                chosen.remove(name)
        return chosen

    def take(self, name: str, made: Plan) -> None:
        """Remove an application from the candidates, and note that it goes."""
        self._names.remove(name)
        (made.unload if name in self._is_own else made.delete).append(name)


class _Room:
    """What is free on each node, and the nodes of each application's replicas.

    Ray does not report where a starting replica is. It is assumed to be where more is used than known
    replicas reserve; if no such node has its resources, it has no place yet.
    """

    def __init__(self, nodes: Sequence[NodeRoom], applications: Sequence[Application]) -> None:
        # Nodes with the same label, on one machine, count as one.
        self.free: dict[str, Amount] = {}
        for node in nodes:
            self.free[node.label] = self.free.get(node.label, Amount()) + node.free
        self.places: _Places = _Places()
        self._parts = {each.name: each.parts for each in applications}
        unknown = _used(nodes)
        _reserve(applications, unknown)
        for each in applications:
            self.places[each.name] += each.places
        for each in applications:
            for _ in range(each.num_starting if each.parts else 0):
                found = _find(each.parts, unknown)
                if found is not None:
                    self.places[each.name].append(found)
                    for part, label in zip(each.parts, found, strict=True):
                        unknown[label] -= part

    def copy(self) -> _Room:
        """Return a copy that changes independently."""
        made = _Room((), ())
        made.free, made._parts = dict(self.free), dict(self._parts)
        made.places = _Places({name: list(places) for name, places in self.places.items()})
        return made

    def find(self, want: Wanted) -> tuple[str, ...] | None:
        """Return the nodes for the parts of another replica, or None if they have no room."""
        held = [label for place in self.places[want.name] for label in set(place)]
        full = {label for label in held if held.count(label) >= want.per_node}
        return _find(want.parts, {label: free for label, free in self.free.items() if label not in full})

    def place(self, want: Wanted) -> bool:
        """Reserve the room of another replica. Returns whether there is any."""
        found = self.find(want)
        if found is None:
            return False
        self._parts[want.name] = want.parts
        self.places[want.name].append(found)
        self._change(want.parts, found, -1)
        return True

    def release(self, name: str) -> None:
        """Free what an application's replicas reserve."""
        for place in self.places.pop(name, ()):
            self._change(self._parts[name], place, 1)

    def refusal(self, want: Wanted) -> str:
        """Return the message for a model without a place."""
        part = max(want.parts, key=lambda part: part.memory)
        with_devices = [free for free in self.free.values() if free.has_devices(part)]
        number = f" on {len(want.parts)} nodes" if len(want.parts) > 1 else ""
        if len(with_devices) >= len(want.parts):
            free = max(free.memory for free in with_devices)
            what = f"no free memory on any node: {_gb(part.memory)} needed{number}, {_gb(free)} free"
        elif sum(free.cores + _STEP >= part.cores for free in self.free.values()) >= len(want.parts):
            most = max((free.gpus for free in self.free.values()), default=0.0)
            what = f"no free GPUs on any node: {part.gpus:g} needed{number}, {_number(most)} free"
        else:
            most = max((free.cores for free in self.free.values()), default=0.0)
            what = f"no free cores on any node: {_number(part.cores)} needed{number}, {_number(most)} free"
        return f"{what}; no idle model can make room, try again later"

    def _change(self, parts: Sequence[Amount], place: Sequence[str], sign: int) -> None:
        for part, label in zip(parts, place, strict=False):
            if label in self.free:
                self.free[label] = self.free[label] + part if sign > 0 else self.free[label] - part


def _used(nodes: Sequence[NodeRoom]) -> dict[str, Amount]:
    """Return what is not free, by the label of the node."""
    used: dict[str, Amount] = {}
    for node in nodes:
        used[node.label] = used.get(node.label, Amount()) + node.total - node.free
    return used


def _reserve(applications: Sequence[Application], free: dict[str, Amount]) -> None:
    """Subtract what known replicas reserve."""
    for each in applications:
        for place in each.places:
            for part, label in zip(each.parts, place, strict=False):
                if label in free:
                    free[label] -= part


class _Places(dict[str, list[tuple[str, ...]]]):
    """The nodes of each application's replicas."""

    def __missing__(self, name: str) -> list[tuple[str, ...]]:
        return self.setdefault(name, [])


def _find(parts: Sequence[Amount], free: Mapping[str, Amount]) -> tuple[str, ...] | None:
    """Return different nodes that cover the parts, or None.

    All parts need the same cores and GPUs, so pairing the largest memory with the largest part is exact.
    """
    order = sorted(range(len(parts)), key=lambda index: -parts[index].memory)
    able = (label for label, each in free.items() if not parts or each.has_devices(parts[0]))
    nodes = sorted(able, key=lambda label: (-free[label].memory, -free[label].cores, label))
    if len(nodes) < len(parts):
        return None
    found = dict(zip(order, nodes, strict=False))
    if not all(free[label].covers(parts[index]) for index, label in found.items()):
        return None
    return tuple(found[index] for index in range(len(parts)))


def _gb(num_bytes: int) -> str:
    return f"{max(0, num_bytes) / 1e9:.3f} GB"


def _number(number: float) -> str:
    return f"{max(0.0, number):.2f}".rstrip("0").rstrip(".")
