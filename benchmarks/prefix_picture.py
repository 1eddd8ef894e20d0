"""Draw the sources of prompt tokens: `python -m benchmarks.prefix_picture MODEL OUT.svg`.

Six conversations with the same system prompt take turns, with too few slots and too little memory for all of
them. After several turns the process is killed, and another one continues. Each bar is a prompt: its computed
tokens, and its tokens from cells, memory and disk. Below it is the time to the first token.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

import chaski
from chaski.chat.events import Done

__all__ = ["draw"]

_STYLE = Path(__file__).with_name("plots.mplstyle")
_CONVERSATIONS, _SYSTEM, _DOCUMENT, _TURN = 6, 600, 900, 60
_TURNS_BEFORE, _TURNS_BEHIND = 3, 2
_SOURCES = (
    ("computed", "#c8452b"),
    ("cells", "#2b2b2b"),
    ("memory", "#7d93a8"),
    ("disk", "#d9c27c"),
)


def main() -> None:
    """Run the conversations and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--memory", default="220MB", help="memory of the tier")
    parser.add_argument("--from-turn", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.from_turn is not None:
        _talk(arguments.model, arguments.from_turn)
        return
    prompts: list[dict[str, Any]] = []
    with TemporaryDirectory() as store:
        environment = os.environ | {
            "OLLAMA_MODELS": store,
            "CHASKI_PREFIX_CACHE": "on",
            "CHASKI_PREFIX_CACHE_MEMORY": arguments.memory,
        }
        for turn in (0, _TURNS_BEFORE):
            command = [sys.executable, "-m", "benchmarks.prefix_picture", arguments.model, str(arguments.out)]
            done = subprocess.run(
                [*command, "--from-turn", str(turn)], env=environment, stdout=subprocess.PIPE, text=True
            )
            prompts += map(json.loads, done.stdout.splitlines())
    with mpl.rc_context(fname=_STYLE):
        draw(prompts).savefig(arguments.out, metadata={"Date": None})
    print(json.dumps(prompts))


def _talk(path: str, begin: int) -> None:
    """Continue all conversations from a turn on, print a line for each prompt, and wait to be killed."""
    model = chaski.load(path, context=4096, parallel=2)
    for turn, conversation in _turns(begin):
        tokens = _prompt(conversation, turn)
        began, first, done = perf_counter(), 0.0, None
        for event in model.stream(tokens, num_predict=2, temperature=0, ignore_eos=True):
            first = first or perf_counter() - began
            done = event if isinstance(event, Done) else done
        assert done is not None
        sources = {"computed": len(tokens) - done.cached_tokens, **done.cached_by_tier}
        print(json.dumps({"turn": turn, "seconds": first, **sources}), flush=True)
        sleep(0.5)
    assert model.engine.tiers is not None
    assert model.engine.tiers.disk is not None
    model.engine.tiers.disk.settle(60)
    os.kill(os.getpid(), signal.SIGKILL)


def _turns(begin: int) -> Iterator[tuple[int, int]]:
    end = _TURNS_BEFORE if begin == 0 else _TURNS_BEFORE + _TURNS_BEHIND
    for turn in range(begin, end):
        order = list(range(_CONVERSATIONS))
        random.Random(turn).shuffle(order)
        yield from ((turn, conversation) for conversation in order)


def _prompt(conversation: int, turn: int) -> list[int]:
    """Return the system prompt, a document, and the conversation up to this turn."""
    parts = [("system", _SYSTEM), (f"document {conversation}", _DOCUMENT)]
    parts += [(f"{conversation} says {number}", _TURN) for number in range(turn + 1)]
    return [
        token for seed, count in parts for token in random.Random(seed).choices(range(100, 30000), k=count)
    ]


def draw(prompts: list[dict[str, Any]]) -> Figure:
    """Return the picture of these prompts in order."""
    figure = Figure(figsize=(8.5, 4.6), layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    places = range(len(prompts))
    base = [0] * len(prompts)
    for name, color in _SOURCES:
        heights = [prompt[name] for prompt in prompts]
        above.bar(places, heights, bottom=base, width=0.8, color=color, label=name)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    below.bar(places, [prompt["seconds"] for prompt in prompts], width=0.8, color="#2b2b2b")
    above.set_ylabel("tokens of the prompt")
    below.set_ylabel("first token, s")
    below.set_xlabel(f"prompts of {_CONVERSATIONS} conversations, in the order in which they came")
    killed = next(place for place, prompt in enumerate(prompts) if prompt["turn"] == _TURNS_BEFORE) - 0.5
    for axis in (above, below):
        axis.axvline(killed, color="#2b2b2b", linestyle="--", linewidth=1)
    below.text(killed + 0.3, below.get_ylim()[1], "killed, and started again", va="top")
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(_SOURCES))
    above.set_xticks([])
    return figure


if __name__ == "__main__":
    main()
