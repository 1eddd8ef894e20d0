"""The plan of a cluster, in chosen cases and against exhaustive search in random ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, permutations

import pytest
from msgspec.structs import replace

from chaski.cluster.plan import Amount, Application, NodeRoom, Plan, Wanted, plan

GB = 1_000_000_000
GRACE = 300.0


def node(label: str, free: Amount, total: Amount | None = None) -> NodeRoom:
    return NodeRoom(label, free if total is None else total, free)


def wanted(name: str, cores: float = 1, memory: int = GB, **changes: object) -> Wanted:
    return replace(Wanted(name, 1, (Amount(cores, memory),)), **changes)


def running(name: str, *labels: str, cores: float = 1, memory: int = GB, **changes: object) -> Application:
    made = Application(name, (Amount(cores, memory),), tuple((label,) for label in labels), wanted_by=("s",))
    return replace(made, **changes)


FULL = node("a", Amount(0, 4 * GB), Amount(1, 8 * GB))


def test_a_model_gets_free_room_and_each_model_one_replica_before_another_gets_two() -> None:
    nodes = [node("a", Amount(1, 8 * GB)), node("b", Amount(1, 8 * GB))]
    found = plan(nodes, [], [wanted("one", number=2), wanted("two", number=2)], GRACE)
    assert found == Plan(numbers={"one": 1, "two": 1})
    assert plan(nodes, [], [wanted("one", number=3)], GRACE).numbers == {"one": 2}
    large = [node("a", Amount(4, 8 * GB))]
    assert plan(large, [], [wanted("one", number=4, per_node=3)], GRACE).numbers == {"one": 3}


def test_the_least_recently_used_idle_model_makes_room() -> None:
    models = [wanted("old", idle_for=50.0), wanted("new", idle_for=5.0), wanted("more")]
    apps = [running("old", "a", cores=0.5), running("new", "a", cores=0.5)]
    nodes = [node("a", Amount(0.5, 0), Amount(1.5, 8 * GB))]
    assert plan(nodes, apps, models, GRACE) == Plan(
        numbers={"old": 1, "new": 1}, unload=["old"], waiting=["more"]
    )
    busy = [replace(models[0], idle_for=None), *models[1:]]
    assert plan(nodes, apps, busy, GRACE).unload == ["new"]
    idle = [*models[:2], replace(models[2], idle_for=1.0)]
    assert not plan(nodes, apps, idle, GRACE).unload, "no request needs its place"


def test_only_models_whose_place_helps_are_unloaded() -> None:
    nodes = [node("a", Amount(1, 0), Amount(2, 8 * GB)), node("b", Amount(0, GB), Amount(1, 9 * GB))]
    apps = [running("small", "a"), running("old", "b", memory=8 * GB), running("new", "a", memory=7 * GB)]
    models = [wanted("old", idle_for=9.0), wanted("small", idle_for=8.0), wanted("new", idle_for=1.0)]
    found = plan(nodes, apps, [*models, wanted("large", memory=8 * GB)], GRACE)
    assert found.unload == ["old"]
    found = plan(nodes, apps, [*models[1:], wanted("old"), wanted("large", memory=7 * GB)], GRACE)
    assert found.unload == ["new"], "without b, only this one has enough"


def test_of_models_that_make_the_same_room_the_last_used_one_stays() -> None:
    sizes = {"old": 2 * GB, "middle": 2 * GB, "new": 3 * GB}
    apps = [running(name, "a", cores=0, memory=size) for name, size in sizes.items()]
    models = [
        wanted(name, 0, size, idle_for=9.0 - number) for number, (name, size) in enumerate(sizes.items())
    ]
    full = node("a", Amount(1, 0), Amount(1, 7 * GB))
    found = plan([full], apps, [*models, wanted("large", memory=5 * GB)], GRACE)
    assert found.unload == ["old", "new"]


def test_no_model_gets_a_second_replica_while_another_has_none() -> None:
    nodes = [node("a", Amount(1, 8 * GB), Amount(3, 8 * GB))]
    models = [wanted("one", number=2, per_node=2), wanted("large", cores=2)]
    apps = [running("one", "a"), running("old", "a")]
    found = plan(nodes, apps, models, GRACE)
    assert (found.numbers, list(found.refused)) == ({"one": 1}, ["large"])
    found = plan(nodes, [apps[0], replace(apps[1], is_leaving=True)], models, GRACE)
    assert (found.numbers, found.waiting) == ({"one": 1}, ["large"])
    assert plan(nodes, apps, models[:1], GRACE).numbers == {"one": 2}


@pytest.mark.parametrize(
    ("free", "needs", "message"),
    [
        (Amount(0, 4 * GB), Amount(1, GB), "no free cores on any node: 1 needed, 0 free"),
        (
            Amount(1, 4 * GB),
            Amount(1, 5 * GB),
            "no free memory on any node: 5.000 GB needed, 4.000 GB free",
        ),
        (Amount(1, 4 * GB), Amount(0.5, GB, 1), "no free GPUs on any node: 1 needed, 0 free"),
    ],
)
def test_a_model_without_a_place_is_refused_with_what_is_missing(
    free: Amount, needs: Amount, message: str
) -> None:
    nodes = [node("a", free, Amount(2, 9 * GB, 1))]
    busy = [running("busy", "a")], [wanted("busy"), Wanted("more", 1, (needs,))]
    found = plan(nodes, *busy, GRACE)
    assert found.refused["more"].startswith(message)
    assert not found.unload


def test_a_model_waits_for_the_place_of_one_that_leaves() -> None:
    leaving = running("old", "a", is_leaving=True)
    assert plan([FULL], [leaving], [wanted("new")], GRACE) == Plan(waiting=["new"])
    assert plan([FULL], [leaving], [wanted("old")], GRACE) == Plan(waiting=["old"]), "the same one again"
    found = plan([FULL], [leaving], [wanted("new"), wanted("more")], GRACE)
    assert (found.waiting, list(found.refused)) == (["new"], ["more"]), "its place is promised"


def test_orphans_are_deleted_after_a_while_or_when_their_place_is_needed() -> None:
    orphan = running("orphan", "a", wanted_by=(), unwanted_for=GRACE - 1)
    assert plan([FULL], [orphan], [], GRACE) == Plan()
    assert plan([FULL], [replace(orphan, unwanted_for=GRACE)], [], GRACE).delete == ["orphan"]
    assert plan([FULL], [orphan], [wanted("new")], GRACE) == Plan(delete=["orphan"], waiting=["new"])
    foreign = replace(orphan, wanted_by=("other server",))
    assert plan([FULL], [foreign], [wanted("new")], GRACE).refused.keys() == {"new"}
    assert plan([FULL], [orphan], [wanted("orphan")], GRACE) == Plan(numbers={"orphan": 1}), "it is adopted"
    found = plan([FULL], [orphan], [wanted("new"), wanted("more")], GRACE)
    assert (found.waiting, list(found.refused)) == (["new"], ["more"]), "its place is promised"
    shared = [running("both", "a", wanted_by=("s", "other server"))]
    found = plan([FULL], shared, [wanted("both", idle_for=9.0), wanted("new")], GRACE)
    assert found.refused.keys() == {"new"}, "another server uses it"


def test_a_starting_replica_is_where_more_is_used_than_known() -> None:
    starting = running("one", num_starting=1)
    taken = node("a", Amount(0, 7 * GB), Amount(1, 8 * GB))
    assert plan([taken], [starting], [wanted("one")], GRACE) == Plan(numbers={"one": 1})
    models = [wanted("one"), wanted("two")]
    found = plan([taken], [starting, running("two", num_starting=1)], models, GRACE)
    assert (found.numbers, list(found.refused)) == ({"one": 1}, ["two"]), "only one of them is there"
    found = plan([taken], [starting], [wanted("one", idle_for=1.0), wanted("two")], GRACE)
    assert found.unload == ["one"]
    found = plan([FULL], [running("other", "a"), starting], [wanted("other"), wanted("one")], GRACE)
    assert found.refused.keys() == {"one"}, "Serve started it, but Ray found no place"


def test_parts_of_a_replica_are_on_different_nodes() -> None:
    nodes = [node(label, Amount(1, memory * GB)) for label, memory in (("a", 3), ("b", 5), ("c", 1))]
    split = Wanted("split", 1, (Amount(1, 2 * GB), Amount(1, 4 * GB)))
    assert plan(nodes, [], [split], GRACE).numbers == {"split": 1}
    larger = replace(split, parts=(Amount(1, 4 * GB), Amount(1, 4 * GB)))
    message = plan(nodes, [], [larger], GRACE).refused["split"]
    assert message.startswith("no free memory on any node: 4.000 GB needed on 2 nodes")
    assert plan(nodes[:1], [], [split], GRACE).refused["split"].startswith("no free cores on any node")


class Simulation:
    """A cluster whose Ray places replicas anywhere, and whose server does what plans say."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.totals = {
            f"n{number}": Amount(chance.randint(1, 3), chance.randint(2, 9) * GB)
            for number in range(chance.randint(1, 3))
        }
        self.apps: dict[str, Application] = {}
        self.models: dict[str, Wanted] = {}

    def free(self, without: Iterable[str] = ()) -> dict[str, Amount]:
        free = dict(self.totals)
        for app in self.apps.values():
            for place in app.places if app.name not in without else ():
                for part, label in zip(app.parts, place, strict=True):
                    free[label] -= part
        assert all(each.covers(Amount()) for each in free.values()), "nothing is given twice"
        return free

    def want(self, number: int) -> None:
        parts = Amount(self.chance.choice([0.5, 1, 2]), self.chance.randint(1, 6) * GB)
        name = f"m{number}"
        copies = self.chance.choice([1, 1, 1, 2])
        self.models[name] = Wanted(name, self.chance.randint(1, 2), (parts,) * copies)

    def step(self) -> Plan:
        """Plan once, check the plan, and do what it says, as far as Ray can."""
        free = self.free()
        rooms = [NodeRoom(label, self.totals[label], free[label]) for label in free]
        found = plan(rooms, list(self.apps.values()), list(self.models.values()), GRACE)
        self.check(found)
        for name, number in found.numbers.items():
            want = self.models[name]
            app = self.apps.get(name) or Application(name, want.parts, wanted_by=("s",))
            while len(app.places) < number:
                places = list(fitting(want, app, self.free()))
                assert places or app.places, "there is room for the first replica"
                if not places:
                    break  # Ray has put the first one elsewhere than planned
                app = replace(app, places=(*app.places, self.chance.choice(places)))
                self.apps[name] = app
        for name in found.unload:
            del self.models[name]
        for name in (*found.unload, *found.delete):
            self.apps[name] = replace(self.apps[name], is_leaving=True)
        return found

    def check(self, found: Plan) -> None:
        """Compare with an exhaustive search. Only one model at a time lacks a place."""
        idle = [name for name, want in self.models.items() if want.idle_for is not None]
        assert set(found.unload) <= set(idle)
        victims = [*found.delete, *found.unload]
        assert all(not self.apps[name].wanted_by for name in found.delete)
        leaving = [name for name, app in self.apps.items() if app.is_leaving]
        candidates = [
            name
            for name, app in self.apps.items()
            if not app.is_leaving and (name in idle or not app.wanted_by)
        ]
        for name in found.refused:
            assert not self.has_room(name, [*leaving, *candidates])
        if victims:
            (name,) = found.waiting
            assert self.has_room(name, [*leaving, *victims])
            assert not any(
                self.has_room(name, [*leaving, *fewer]) for fewer in combinations(victims, len(victims) - 1)
            )
            # No set of applications does that are all less recently used.
            least = max(self.rank(each) for each in victims)
            older = [each for each in candidates if self.rank(each) < least]
            assert not self.has_room(name, [*leaving, *older])

    def rank(self, name: str) -> tuple[int, float]:
        """The order in which applications go."""
        app = self.apps[name]
        if not app.wanted_by:
            return 0, -app.unwanted_for
        return 1, -(self.models[name].idle_for or 0.0)

    def has_room(self, name: str, without: Sequence[str]) -> bool:
        want = self.models[name]
        return any(fitting(want, Application(name, want.parts), self.free(without)))


def fitting(want: Wanted, app: Application, free: Mapping[str, Amount]) -> Iterable[tuple[str, ...]]:
    """Yield all nodes for the parts of another replica."""
    used = {label for place in app.places for label in place}
    for place in permutations(free.keys() - used, len(want.parts)):
        if all(free[label].covers(part) for part, label in zip(want.parts, place, strict=True)):
            yield place


@pytest.mark.parametrize("seed", range(40))
def test_random_clusters_are_planned_as_by_exhaustive_search(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Simulation(chance)
    unloads = refusals = 0
    for number in range(60):
        for name, want in list(cluster.models.items()):
            is_placed = name in cluster.apps
            cluster.models[name] = replace(
                want, idle_for=chance.choice([None, float(number + chance.random())]) if is_placed else None
            )
        if all(name in cluster.apps for name in cluster.models):
            cluster.want(number)
        found = cluster.step()
        unloads += len(found.unload)
        refusals += len(found.refused)
        for name in found.refused:
            del cluster.models[name]  # its requests get the message
        for name, app in list(cluster.apps.items()):
            if app.is_leaving and chance.random() < 0.5:
                del cluster.apps[name]
            elif name in cluster.models and chance.random() < 0.05:
                del cluster.models[name]  # the server that wanted it was killed
                cluster.apps[name] = replace(app, wanted_by=(), unwanted_for=chance.random() * 100)
    assert unloads
    assert refusals
