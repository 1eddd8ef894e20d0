"""Which connection is closed when there are too many, and what the choice costs."""

from __future__ import annotations

from dataclasses import dataclass

from chaski.server.network.crowd import Crowd


@dataclass(eq=False, slots=True)
class Connection:
    host: str = "a"
    is_admitted: bool = False
    idle: bool = False
    late: float = 0.0
    looks: int = 0

    @property
    def is_idle(self) -> bool:
        self.looks += 1
        return self.idle

    @property
    def lateness(self) -> float:
        self.looks += 1
        return self.late


def crowd_of(members: list[Connection]) -> Crowd[Connection]:
    crowd = Crowd[Connection]()
    for member in members:
        crowd.rest(member)
    return crowd


def test_the_longest_idle_one_comes_first() -> None:
    first, second, third = members = [Connection(idle=True) for _ in range(3)]
    crowd = crowd_of(members)
    crowd.rest(first)  # it has had another answer
    crowd.leave(second)
    assert crowd.to_close(members, 0.0) is third
    assert crowd.to_close(members, 0.0) is first
    assert crowd.to_close(members, 0.0) is None


def test_an_unread_answer_is_passed_over_for_now() -> None:
    reading, idle = members = [Connection(), Connection(idle=True)]
    crowd = crowd_of(members)
    assert crowd.to_close(members, 0.0) is idle
    reading.idle = True
    assert crowd.to_close(members, 0.0) is reading


def test_of_slow_clients_those_without_a_key_and_with_most_connections_come_first() -> None:
    ranked = [
        Connection("many", late=2.0),
        Connection("many", late=1.0),
        Connection("one", late=9.0),
        Connection("key", is_admitted=True, late=99.0),
        Connection("key", is_admitted=True, late=98.0),
    ]
    busy = Connection()
    members = [busy, *reversed(ranked)]
    crowd = Crowd[Connection]()
    found = []
    for _ in ranked:
        found.append(crowd.to_close(members, 0.0))
        members.remove(ranked[len(found) - 1])
    assert found == ranked
    assert crowd.to_close(members, 0.0) is None


def test_who_is_slow_changes() -> None:
    member = Connection()
    crowd = Crowd[Connection]()
    assert crowd.to_close([member], 0.0) is None
    member.late = 1.0
    assert crowd.to_close([member], 0.25) is member
    other = Connection(late=5.0)
    last = Connection(late=4.0)
    assert crowd.to_close([other, last], 0.5) is other
    last.late = 0.0
    assert crowd.to_close([last], 0.6) is None


def test_each_choice_looks_at_few_connections() -> None:
    """Strangers who open connections without pause must not take the server's time."""
    for idle, late in ((True, 0.0), (False, 3.0), (False, 0.0)):
        members = [Connection(idle=idle, late=late) for _ in range(3000)]
        crowd = crowd_of(members)
        left = list(members)
        for number in range(1000):
            closed = crowd.to_close(left, number / 1000)
            if closed is not None:
                crowd.leave(closed)
                closed.idle, closed.late = False, 0.0
        # Three thousand would be looked at a thousand times.
        assert sum(member.looks for member in members) < 100_000, (idle, late)
