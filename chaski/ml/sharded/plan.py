"""Plans over several members. Each launch sends one message to every member, and receives one reply."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import ClusterError
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.plan import FromLaunch, Input, misfit
from chaski.ml.sharded.expert_tiers import ExpertTiers, TieredLayer
from chaski.ml.sharded.frames import Message
from chaski.ml.sharded.head import Members
from chaski.ml.sharded.pieces import Piece, Result, TopOfParts
from chaski.ml.sharded.placement import joined

__all__ = ["PlannedExperts", "ShardedLaunch", "ShardedPlan"]

F32 = npt.NDArray[np.float32]

# Seconds to wait for the head to notice the loss of a member after another member has reported a failure.
_NOTICED = 1.0

_TYPES: Mapping[DType, npt.DTypeLike] = {DType.I32: np.int32, DType.F32: np.float32, DType.F16: np.float16}


class PlannedExperts(Struct, frozen=True):
    """The experts of a plan that are in two places.

    tiers   their places and the choices of tokens
    routes  by the name of an output with the choices of tokens: its layer
    move    lets experts change their places between two launches
    """

    tiers: ExpertTiers
    routes: Mapping[str, TieredLayer]
    move: Callable[[], None]

    def places(self) -> Mapping[str, npt.NDArray[np.int32]]:
        """Return the inputs with the places for a launch, by name."""
        self.move()
        return self.tiers.inputs

    def note(self, found: Mapping[str, F32], places: Mapping[str, npt.NDArray[np.int32]]) -> None:
        """Count the choices of a launch, from the outputs that have arrived."""
        self.tiers.note({layer: found[name] for name, layer in self.routes.items() if name in found}, places)


class ShardedPlan:
    """A graph that members compute together. `number` is the plan's number on every member."""

    def __init__(
        self,
        graph: Graph,
        pieces: Sequence[Sequence[Piece]],
        results: Mapping[str, Result],
        members: Members,
        backend: int,
        number: int,
        experts: PlannedExperts | None = None,
    ) -> None:
        self._members = members
        self._inputs = graph.inputs
        self._experts = experts
        self._dims = {d.name: d.maximum for node in graph.nodes for d in node.shape if isinstance(d, Dim)}
        self._results = results
        self._plan = {"backend": backend, "plan": number}
        # The inputs that are sent to each member, which are those that its pieces read.
        self._read = [_read_inputs(some, graph.inputs) for some in pieces]
        self._taking_part = [number for number, some in enumerate(pieces) if some]

    def launch(self, inputs: Mapping[str, Input], sizes: Mapping[str, int] | None = None) -> ShardedLaunch:
        note = None
        if self._experts is not None:
            places = self._experts.places()
            inputs = {**inputs, **{name: places[name] for name in self._inputs if name in places}}
            note = partial(self._experts.note, places=places)
        if inputs.keys() != self._inputs.keys():
            raise misfit(inputs, self._inputs)
        given = dict(sizes) if sizes else {}
        arrays = {name: self._array(name, value, given) for name, value in inputs.items()}
        run = self._members.next_run()
        requests = {}
        for member in self._taking_part:
            names = self._read[member]
            fields = {**self._plan, "run": run, "sizes": given, "inputs": names}
            requests[member] = self._members[member].request(
                "launch", fields, [arrays[name] for name in names]
            )
        replies = {member: request.reply for member, request in requests.items()}
        tops = {name: result.top for name, result in self._results.items() if result.top is not None}
        counts = {name: arrays[top.counts] for name, top in tops.items()}
        launch = ShardedLaunch(self._members, run, replies, self._results, given, counts, note)
        self._members.send_together(list(requests.values()))
        return launch

    def _array(self, name: str, value: Input, sizes: dict[str, int]) -> npt.NDArray[Any]:
        node = self._inputs[name]
        leading = node.shape[0]
        assert isinstance(leading, Dim), f"{name}: the leading dimension of an input must be a run-time one"
        size = len(value)
        if sizes.setdefault(leading.name, size) != size or size > leading.maximum:
            raise ValueError(
                f"input {name} has {size} rows; it needs {leading.name} = {sizes[leading.name]}, at most "
                f"{leading.maximum}"
            )
        known = value.fetch() if isinstance(value, FromLaunch) else value
        return np.array(known, _TYPES[node.dtype], order="C")


class ShardedLaunch:
    """One run. Members keep its results until this object is deleted."""

    def __init__(
        self,
        members: Members,
        run: int,
        replies: Mapping[int, Future[Message]],
        results: Mapping[str, Result],
        sizes: Mapping[str, int],
        counts: Mapping[str, npt.NDArray[Any]],
        note: Callable[[Mapping[str, F32]], None] | None = None,
    ) -> None:
        """Create the run.

        counts  for results that are the largest elements of rows, the number for each row
        note    receives the results that have arrived with the replies
        """
        self._note = note
        self._members = members
        self._counts = counts
        self._run = run
        self._replies = replies
        self._results = results
        self._sizes = sizes
        self._known: dict[tuple[int, str], npt.NDArray[Any]] = {}
        self._is_over = False
        self._failure: Exception | None = None
        weakref.finalize(self, members.release, run)

    def wait(self) -> None:
        """Wait for all replies. Raises the error of a member that failed, or ClusterError for a lost member.

        This method raises the error once, and `rows` raises it on every call.
        """
        if self._is_over:
            return
        self._is_over = True
        failures: list[Exception] = []
        for member, reply in self._replies.items():
            try:
                fields, arrays = reply.result()
            except Exception as error:
                failures.append(error)
            else:
                self._known |= {
                    (member, name): rows for name, rows in zip(fields["results"], arrays, strict=True)
                }
        if failures:
            # Members that only waited for another member report ClusterError.
            own = next((error for error in failures if not isinstance(error, ClusterError)), None)
            self._failure = self._members.failure or own or self._members.loss(_NOTICED) or failures[0]
            raise self._failure
        if self._note is not None:
            keys = {name: (result.members[0], result.value) for name, result in self._results.items()}
            self._note({name: self._known[key] for name, key in keys.items() if key in self._known})

    def rows(self, output: str, begin: int = 0, end: int | None = None) -> F32:
        self.wait()
        if self._failure is not None:
            raise self._failure
        result = self._results[output]
        size = self._sizes[result.leading]
        end = size if end is None else min(end, size)
        replies = {
            member: self._members[member].start("rows", self._wanted(result.value, begin, end))
            for member in result.members
            if (member, result.value) not in self._known
        }
        parts = [
            self._known[member, result.value][begin:end]
            if member not in replies
            else replies[member].result()[1][0]
            for member in result.members
        ]
        if result.top is not None:
            return _top(parts, result.top, self._counts[output][begin:end])
        return joined(parts, result.groups)

    def drop(self, output: str) -> None:
        """Do nothing: members keep results until this object is deleted."""

    def _wanted(self, value: str, begin: int, end: int) -> Mapping[str, Any]:
        return {"run": self._run, "value": value, "begin": begin, "end": end}


def _top(parts: Sequence[F32], top: TopOfParts, counts: npt.NDArray[Any]) -> F32:
    """Return the largest elements of rows from those of their parts, ordered as `ops.top_k` orders them."""
    rows, most = len(counts), parts[0].shape[1] // 2
    found = [part.reshape(rows, 2, most) for part in parts]
    values = np.concatenate([part[:, 0] for part in found], axis=1)
    indices = np.concatenate(
        [part[:, 1] + begin for part, (begin, _) in zip(found, top.cuts, strict=True)], 1
    )
    is_none = np.tile(np.arange(most) >= counts[:, None], len(parts))
    order = np.lexsort((indices, -values, ~np.isnan(values), is_none))[:, :most]
    best = [np.take_along_axis(each, order, 1) for each in (values, indices)]
    return np.stack(best, axis=1, dtype=np.float32).reshape(rows, 2 * most)


def _read_inputs(pieces: Sequence[Piece], inputs: Mapping[str, Tensor]) -> list[str]:
    names = {name for piece in pieces for name in piece.graph.inputs}
    names |= {source for piece in pieces for source, _ in piece.ids.values()}
    owned = [each.owned for piece in pieces for each in piece.gathers]
    owned += [each.owned for piece in pieces for each in piece.sends]
    names |= {each.ids for each in owned if each is not None}
    return [name for name in inputs if name in names]
