"""The measurements of `benchmarks.vision` and their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.times import OURS, Times

__all__ = ["Measured", "table"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The best times of each engine, by its name, for an encoder with matrices of a type.

    encode      time from normalized pixels to rows; prepare: time from the file to pixels
    difference  root mean square of each peer's difference, relative to our rows; None where they
                have other shapes
    failed      failed measurements with reasons
    """

    encoder: str
    type: str
    computed: int
    num_layers: int
    rows: int
    prepare: Mapping[str, Times]
    encode: Mapping[str, Times]
    difference: Mapping[str, float | None]
    failed: Mapping[str, str]

    def best_peer(self, what: str) -> str | None:
        """Return the fastest peer by `wall` or by `cpu`, or None."""
        peers = [name for name in self.encode if name != OURS]
        return min(peers, key=lambda name: float(getattr(self.encode[name], what)), default=None)

    def ratio(self, what: str) -> float | None:
        """Return the best peer's time as a multiple of ours."""
        peer = self.best_peer(what)
        if peer is None or OURS not in self.encode:
            return None
        return float(getattr(self.encode[peer], what) / getattr(self.encode[OURS], what))


_HEAD = (
    "| encoder | layers | rows | type | chaski | libmtmd | its setting | times | chaski, processor time "
    "| libmtmd | times | prepared in | libmtmd | rows differ |\n"
    "|---|--:|--:|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|"
)


def table(measured: Sequence[Measured]) -> str:
    """Return all results in Markdown, in milliseconds, followed by the failures."""
    failed = [
        f"{one.encoder}, {one.type}, {engine}: {why}"
        for one in measured
        for engine, why in one.failed.items()
    ]
    return "\n".join([_HEAD, *(_line(one) for one in measured if one.encode), *failed])


def _line(one: Measured) -> str:
    peer = one.best_peer("wall")
    cells = [
        one.encoder,
        f"{one.computed} of {one.num_layers}",
        str(one.rows),
        one.type,
        *_compared(one, "wall", with_setting=True),
        *_compared(one, "cpu", with_setting=False),
        _milliseconds(one.prepare, OURS, "wall"),
        _milliseconds(one.prepare, peer, "wall"),
        "–" if peer is None else _share(one.difference.get(peer)),
    ]
    return f"| {' | '.join(cells)} |"


def _compared(one: Measured, what: str, with_setting: bool) -> list[str]:
    peer, ratio = one.best_peer(what), one.ratio(what)
    setting = [peer.partition(": ")[2] if peer else "–"] if with_setting else []
    times = "–" if ratio is None else f"**{ratio:.2f}**"
    return [_milliseconds(one.encode, OURS, what), _milliseconds(one.encode, peer, what), *setting, times]


def _milliseconds(times: Mapping[str, Times], engine: str | None, what: str) -> str:
    return "–" if engine is None or engine not in times else f"{getattr(times[engine], what) * 1000:.0f}"


def _share(difference: float | None) -> str:
    return "other shape" if difference is None else f"{difference:.2%}"
