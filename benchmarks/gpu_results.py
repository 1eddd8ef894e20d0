"""Results of `benchmarks.gpu`: a file, a table with goals, and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.make_models import SHAPES, num_products, weight_bytes
from benchmarks.shapes.llama import Llama
from chaski import __version__

__all__ = ["GOALS", "SINGLE", "Results"]

Figures = Mapping[str, Any]
SINGLE = "1 sequence"

GOALS: Mapping[tuple[str, str, str], tuple[str, float]] = {
    ("llama-3.1-8b", SINGLE, "decode"): ("of a copy", 0.70),
    ("llama-3.2-1b", SINGLE, "decode"): ("of a copy", 0.55),
    ("llama-3.1-8b", "behind 32,768", "decode"): ("of a copy", 0.60),
    ("llama-3.1-8b", "64 sequences", "decode"): ("tokens/s", 5300.0),
    ("llama-3.1-8b", "prompt of 2,048", "prefill"): ("of products", 0.50),
}
"""By shape, work and quantity: the unit, and the goal on an H200 with Q4_K_M."""

# The place of a worker's result, by a key that only this kind of result has.
_PLACES = ("load_seconds", "kernels", "torch", "experts", "failed", "left_out")


class Results:
    """The measurements of a device in `folder`. `found` is the content of its `results.json`."""

    def __init__(self, folder: Path, type: str, device: Sequence[Figures]) -> None:
        self.folder, self._type, self._device = folder, type, device
        self.found: dict[str, Any] = {
            "date": f"{datetime.now():%Y-%m-%d %H:%M}",
            "chaski": __version__,
            "type": type,
            "device": device,
            "rows": [],
            **{place: [] for place in _PLACES},
        }

    def take(self, figures: Figures) -> None:
        """Keep a result of a worker, and rewrite the file."""
        if "prefill" in figures:
            self._row(figures)
        else:
            self.found[next(place for place in _PLACES if place in figures)].append(figures)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "results.json").write_text(json.dumps(self.found, indent=2) + "\n")

    def _row(self, figures: Figures) -> None:
        own = {key: figures[key] for key in ("shape", "threads", "work", "numbers")}
        rows = self.found["rows"]
        row = next((row for row in rows if all(row[key] == value for key, value in own.items())), None)
        if row is None:
            row = {**own, "prefill": [], "decode": []}
            rows.append(row)
        for what in ("prefill", "decode"):
            row[what].append(figures[what])

    @property
    def rows(self) -> Sequence[Figures]:
        """Return the works of models, each with the rates of all its measurements."""
        found: Sequence[Figures] = self.found["rows"]
        return found

    def share(self, row: Figures, what: str) -> float | None:
        """Return the share of the device's limit; None if the limit is unknown."""
        limit = self._limit("products" if what == "prefill" else "copy", row["threads"])
        return None if limit is None else self._used(row, what) / limit

    def _used(self, row: Figures, what: str) -> float:
        """Return multiply-adds of matrices per second, or bytes of weights and history read per second."""
        shape, rate = SHAPES[row["shape"]], float(median(row[what]))
        if what == "prefill":
            return num_products(shape)[0] * rate
        prompt, generate, depth, batch = row["numbers"]
        history = batch * (depth + prompt + generate / 2) * _history_bytes(shape)
        size: float = weight_bytes(shape, self._type) + history
        return size * rate / int(batch)

    def _limit(self, name: str, threads: int | None) -> float | None:
        """Return the limit of the device, or of this many threads."""
        found = (each[name] for each in self._device if each.get("threads") == threads and name in each)
        return next(found, None)

    def table(self) -> Iterator[str]:
        """Return all results as lines of Markdown."""
        yield "| model | work | threads | prefill, tok/s | of products | decode, tok/s | of a copy | goal |"
        yield "|---|---|--:|--:|--:|--:|--:|---|"
        for row in self.rows:
            cells = [row["shape"], row["work"], str(row["threads"] or "")]
            for what in ("prefill", "decode"):
                share = self.share(row, what)
                cells += [f"{median(row[what]):,.1f}", "" if share is None else f"{share:.0%}"]
            yield f"| {' | '.join((*cells, self._goal(row)))} |"
        yield ""
        for load in self.found["load_seconds"]:
            times = (
                f"loaded in {load['load_seconds']:.2f} s, logits after {load['first_logits_seconds']:.2f} s"
            )
            yield f"{load['name']}: {times}"
        for each in self.found["experts"]:
            hits = "" if each["on_gpu"] is None else f", {each['on_gpu']:.0%} of requests on the GPU"
            rates = f"prompt {each['prompt_rate']:,.0f}, answer {each['answer_rate']:,.1f} tokens/s"
            yield f"{each['experts']}, experts: {each['place']}: {rates}{hits}"
        for each in self.found["torch"]:
            rate = f"{each['rate']:,.0f} tokens/s"
            yield f"torch, products alone of {each['torch']} in bf16, {each['tokens']} at a time: {rate}"
        for step in self.found["kernels"]:
            yield f"{step['name']}, the slowest kernels of a step:"
            for each in step["kernels"]:
                yield f"    {each['times']} times {each['microseconds']:.1f} µs  {each['kernel']}"
        for place in ("failed", "left_out"):
            for each in self.found[place]:
                yield f"{each['name']}: {each[place]}"

    def _goal(self, row: Figures) -> str:
        told = []
        for what in ("prefill", "decode"):
            unit, goal = GOALS.get((row["shape"], row["work"], what), ("", 0.0))
            value = median(row[what]) if unit == "tokens/s" else self.share(row, what)
            if unit and value is not None and row["threads"] is None:
                asked = f"{goal:,.0f} {unit}" if unit == "tokens/s" else f"{goal:.0%} {unit}"
                told.append(f"{asked}: {'met' if value >= goal else 'missed'}")
        return ", ".join(told)

    def draw(self) -> None:
        """Draw `prefill.svg` and `decode.svg`: rates of all works, and goals. Needs matplotlib."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context(fname=Path(__file__).with_name("plots.mplstyle")):
            for what in ("prefill", "decode"):
                figure = Figure((8.4, 1.2 + 0.3 * len(self.rows)), layout="constrained", facecolor="white")
                axis = figure.add_subplot()
                for place, row in enumerate(self.rows):
                    value, share = median(row[what]), self.share(row, what)
                    axis.barh(place, value, 0.7, color="#c8452b")
                    told = f"{value:,.0f}" + ("" if share is None else f" ({share:.0%})")
                    axis.annotate(told, (value, place), (4, 0), textcoords="offset points", va="center")
                    unit, goal = GOALS.get((row["shape"], row["work"], what), ("", 0.0))
                    if row["threads"] is None and unit and (share or unit == "tokens/s"):
                        at = goal if unit == "tokens/s" else goal * value / (share or 1.0)
                        axis.plot((at, at), (place - 0.45, place + 0.45), color="#2b2b2b", lw=1.6)
                axis.set_yticks(range(len(self.rows)), [_label(row) for row in self.rows])
                axis.invert_yaxis()
                axis.grid(axis="y", visible=False)
                axis.set_xscale("log")
                limit = "products" if what == "prefill" else "a copy"
                axis.set_xlabel(f"{what}, tokens per second, and the share of {limit}; lines are goals")
                figure.savefig(self.folder / f"{what}.svg", metadata={"Date": None})


def _history_bytes(shape: Any) -> float:
    """Return the bytes of a token's keys and values as int16, with a scale for each head."""
    assert isinstance(shape, Llama)
    return shape.history_elements * (2 + 4 / shape.head_dim)


def _label(row: Figures) -> str:
    threads = f", {row['threads']} threads" if row["threads"] else ""
    return f"{row['shape']}, {row['work']}{threads}"
