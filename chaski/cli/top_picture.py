"""The screen of `chaski top`: the figures of `/api/live` as lines for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from chaski.cli.expert_line import experts_line
from chaski.cli.layout import size_in_bytes
from chaski.cli.top_cells import cell_lines
from chaski.cli.top_lines import BOLD, CHOSEN, FREE, GENERATED, PROBLEM, Line, bar, fit, fit_right, sparks

__all__ = ["KEYS", "ORDERS", "View", "chosen_index", "picture"]

KEYS = (
    ("q", "end"),
    ("up, down, j, k", "choose a model"),
    ("PgUp, PgDn", "earlier and later sequences"),
    ("c", "the cells of the chosen model's cache, and back"),
    ("s", "sort sequences: by age, rate, tokens, slot"),
    ("p", "pause and resume updates"),
    ("?", "this help, and back"),
)
_HINT = "q end  j k model  c cache  s sort  p pause  ? help"
# Columns of a line's label, and the screen width from which sequences show more figures.
_LABEL, _WIDE = 12, 100

ORDERS: dict[str, Callable[[Any], Any]] = {
    "age": lambda sequence: sequence["id"],
    "rate": lambda sequence: -_rate(sequence),
    "tokens": lambda sequence: -sum(_tokens(sequence)),
    "slot": lambda sequence: (sequence["slot"] is None, sequence["slot"] or 0),
}


class View(Struct):
    """The view settings of the figures.

    chosen: name of a model, else the first one. order: one of ORDERS. first: index of the first sequence that
    is visible.
    cells: the answer of `/api/live/cache`, or an error text; None while sequences are shown.
    rates: generated tokens per second at the last updates. problem: why no figures arrive, else "".
    """

    chosen: str = ""
    order: str = "age"
    first: int = 0
    cells: Any = None
    rates: Sequence[float] = ()
    problem: str = ""
    has_help: bool = False
    is_paused: bool = False
    is_interactive: bool = True


def picture(figures: Any, url: str, view: View, width: int, height: int | None) -> list[Line]:
    """Return the lines, at most `height`; without a height, as many as needed.

    Raises LookupError, TypeError, ValueError or AttributeError for malformed figures.
    """
    models = figures["models"]
    lines = list(_server_lines(figures, url, view, width))
    if not models:
        lines.append([(fit("No model is in memory. The first request loads one.", width), "")])
    else:
        chosen = chosen_index(models, view)
        lines += _model_table(models, chosen, width, height)
        lines += _model_lines(models[chosen], width)
        lines.append([])
    foot = [] if not view.is_interactive else [_foot(view, width)]
    left = None if height is None else max(height - len(lines) - len(foot), 0)
    if view.has_help:
        lines += [[(fit(keys, 18), BOLD), (what, "")] for keys, what in KEYS]
    elif models:
        lines += _body(models[chosen], view, width, left)
    if height is None:
        return lines + foot
    lines = lines[: height - len(foot)]
    return lines + [[]] * (height - len(foot) - len(lines)) + foot


def chosen_index(models: Any, view: View) -> int:
    """Return the index of the chosen model, because models may move or disappear."""
    names = [model["name"] for model in models]
    return names.index(view.chosen) if view.chosen in names else 0


def _server_lines(figures: Any, url: str, view: View, width: int) -> Iterator[Line]:
    server, models = figures["server"], figures["models"]
    up = f"up {_time(server['uptime_seconds'])}"
    state = "paused" if view.is_paused else up
    title = f"chaski {server['version']} at {url}"
    yield [(fit(title, width - 12), BOLD), (fit_right(state, 12), CHOSEN if view.is_paused else "")]
    memory, free, own = server["memory_bytes"], server["available_bytes"], server["models_bytes"]
    words = f" {size_in_bytes(own)} models, {size_in_bytes(free)} free of {size_in_bytes(memory)}"
    room = max(width - _LABEL - 46, 10)
    yield [
        (fit("machine", _LABEL), ""),
        *bar((own, memory - free - own), memory, room),
        (fit(words, min(46, width - _LABEL - room)), ""),
    ]
    generated = sum(model.get("generated_tokens_per_second", 0) for model in models)
    computed = sum(model.get("prompt_tokens_per_second", 0) for model in models)
    words = f"{generated:,.1f} tok/s generated, {computed:,.1f} tok/s of prompts"
    if waiting := server["waiting_for_load"]:
        words += f", {waiting} waiting for a model"
    room = max(width - _LABEL - len(words) - 1, 0)
    shown = sparks(view.rates[-room:]) if room and len(view.rates) > 1 else ""
    yield [
        (fit("rates", _LABEL), ""),
        (fit(words, min(len(words), width - _LABEL)) + " ", ""),
        (shown, GENERATED),
    ]
    yield []


def _model_table(models: Any, chosen: int, width: int, height: int | None) -> Iterator[Line]:
    """Yield the models that fit into a third of the height, including the chosen one."""
    name = width - 2 - 8 - 5 - 10 - 10 - 9 - 9
    head = ("RUN", 8), ("WAIT", 5), ("PROMPT/S", 10), ("TOK/S", 10), ("MEMORY", 9), ("CONTEXT", 9)
    yield [(fit("  MODEL", name + 2) + "".join(fit_right(*cell) for cell in head), BOLD)]
    most = len(models) if height is None else max(height // 3 - 3, 1)
    begin = max(chosen - most + 1, 0)
    for index, model in enumerate(models[begin : begin + most], begin):
        is_chosen = index == chosen
        row = (
            (f"{model['running']}/{model['parallel']}", 8),
            (model["waiting"], 5),
            (f"{model.get('prompt_tokens_per_second', 0):.1f}", 10),
            (f"{model.get('generated_tokens_per_second', 0):.1f}", 10),
            (size_in_bytes(model["memory"]["total"]), 9),
            (model["context_length"], 9),
        )
        text = ("> " if is_chosen else "  ") + fit(model["name"], name)
        yield [(text + "".join(fit_right(*cell) for cell in row), CHOSEN if is_chosen else "")]
    if len(models) > most:
        yield [(fit(f"  {len(models)} models in all", width), FREE)]
    yield []


def _model_lines(model: Any, width: int) -> Iterator[Line]:
    memory = model["memory"]
    parts = ", ".join(f"{size_in_bytes(memory[part])} {part}" for part in memory if part != "total")
    yield [(fit("memory", _LABEL), ""), (fit(f"{parts} ({model['engine']})", width - _LABEL), "")]
    for replica in model.get("replicas", ()):
        words = f"{replica['answers']} of {replica['places']} places taken on {replica['node']}"
        nodes = "".join(f", {node}" for node, _ in replica["shards"] if node != replica["node"])
        name = fit(replica["name"], _LABEL - 1) + " "
        yield [(name, ""), (fit(f"{words}{nodes}", width - _LABEL), "")]
    if waiting := model.get("waiting_for_replica"):
        words = f"{waiting} requests wait until the model is loaded again"
        yield [(fit("waiting", _LABEL), ""), (fit(words, width - _LABEL), PROBLEM)]
    for tier in model["prefix_cache"]:
        words = f" {tier['blocks']} blocks, {tier['tokens']} tokens"
        words += f", {size_in_bytes(tier['bytes'])} of {size_in_bytes(tier['max_bytes'])}"
        room = max(width - _LABEL - 52, 8)
        level = bar((tier["bytes"],), tier["max_bytes"], room)
        yield [
            (fit(f"{tier['tier']} tier", _LABEL), ""),
            *level,
            (fit(words, min(52, width - _LABEL - room)), ""),
        ]
    if experts := model.get("experts"):
        yield [(fit("experts", _LABEL), ""), (fit(experts_line(experts), width - _LABEL), "")]
    if "generated_tokens" in model:
        words = f"{model['prompt_tokens']:,} of prompts computed, {model['generated_tokens']:,} generated"
        if "dropped_tokens" in model:
            words += f", {model['dropped_tokens']:,} dropped"
        yield [(fit("tokens", _LABEL), ""), (fit(words, width - _LABEL), "")]
    if tiers := model.get("cached_tokens_by_tier"):
        words = ", ".join(f"{count:,} from {tier}" for tier, count in tiers.items())
        yield [(fit("cached", _LABEL), ""), (fit(words, width - _LABEL), "")]
    if proposed := model.get("proposed_tokens", 0):
        accepted = model["accepted_tokens"]
        words = f"{accepted:,} of {proposed:,} right ({accepted / proposed:.0%})"
        yield [(fit("guessed", _LABEL), ""), (fit(words, width - _LABEL), "")]


def _body(model: Any, view: View, width: int, height: int | None) -> list[Line]:
    if view.cells is not None:
        if isinstance(view.cells, str):
            return [[(fit(view.cells, width), "")]]
        return cell_lines(view.cells, width, height or 24)
    if "sequences" not in model:
        return [[("No figures of sequences come from this model.", "")]]
    return list(_sequence_table(model, view, width, height))


def _sequence_table(model: Any, view: View, width: int, height: int | None) -> Iterator[Line]:
    """Yield sequences, each with a bar of its context: cached, computed and generated tokens."""
    sequences = sorted(model["sequences"], key=ORDERS[view.order])
    has_replicas = any(each.get("replica") for each in sequences)
    extra = [("GUESSED", 12), ("DROPPED", 8)] if width >= _WIDE else []
    extra += [("REPLICA", 10)] if has_replicas else []
    head = (("PROMPT", 8), ("CACHED", 8), ("MADE", 8), *extra, ("TOK/S", 8), ("TIME", 8))
    room = width - 5 - 1 - 10 - 1 - sum(taken for _, taken in head)
    title = fit_right("SLOT", 5) + " " + fit("STATE", 10) + fit("▒ cached █ new ▓ made", room + 1)
    yield [(title + "".join(fit_right(*cell) for cell in head), BOLD)]
    if not sequences:
        yield [("      nobody asks", "")]
    most = len(sequences) if height is None else max(height - 2, 1)
    view.first = min(max(view.first, 0), max(len(sequences) - most, 0))
    for each in sequences[view.first : view.first + most]:
        guessed = (f"{each['accepted_tokens']}/{each['proposed_tokens']}", 12)
        more = [guessed, (each["dropped_tokens"], 8)] if width >= _WIDE else []
        more += [(each.get("replica", ""), 10)] if has_replicas else []
        tokens = (each["prompt_tokens"], 8), (each["cached_tokens"], 8), (each["generated_tokens"], 8)
        row = (*tokens, *more, (f"{_rate(each):.1f}", 8), (_time(each["seconds"]), 8))
        line: Line = [(f"{fit_right(_slot(each), 5)} {fit(each['state'], 10)}", "")]
        line += [*bar(_tokens(each), model["context_length"], room), (" ", "")]
        yield [*line, ("".join(fit_right(*cell) for cell in row), "")]
    if (total := model["num_sequences"]) > most:
        last = min(view.first + most, len(sequences))
        yield [(fit(f"      {view.first + 1} to {last} of {total} sequences", width), FREE)]


def _foot(view: View, width: int) -> Line:
    if view.problem:
        return [(fit(view.problem, width), PROBLEM)]
    return [(fit(f"{_HINT}   sorted by {view.order}", width), "")]


def _tokens(sequence: Any) -> tuple[int, int, int]:
    """Return the numbers of cached, computed and generated tokens of a sequence."""
    dropped = sequence["dropped_tokens"]
    cached, computed = sequence["cached_tokens"], sequence["computed_tokens"]
    made = sequence["generated_tokens"]
    from_prompt = min(dropped, computed)
    return cached, computed - from_prompt, max(made - (dropped - from_prompt), 0)


def _slot(sequence: Any) -> str:
    """Return the slot number; a waiting sequence has none."""
    return "-" if sequence["slot"] is None else str(sequence["slot"])


def _rate(sequence: Any) -> float:
    kind = "prompt" if sequence["state"] == "prefill" else "generated"
    rate: float = sequence[f"{kind}_tokens_per_second"]
    return rate


def _time(seconds: float) -> str:
    """Format a time in at most seven columns: `3.2s`, `4m05s`, `7h12m`, `3d04h`."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
