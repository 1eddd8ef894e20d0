"""Values of any type anywhere in tokenizer.json: the conversion works, or reports the problem."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from chaski.convert.config import Config
from chaski.convert.tokenizer import tokenizer_metadata
from chaski.errors import ChaskiError, TokenizerError

DATA = Path(__file__).parents[1] / "data" / "checkpoints"
OTHERS: list[Any] = [None, True, -1, 1.5, "x", [], [1], [[]], {}, {"a": 1}, 10**30]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value, but only a few of a list or of many keys."""
    yield path
    items = list(
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, item in items[:12]:
        yield from places(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = value.copy()
    copy[path[0]] = changed(copy[path[0]], path[1:], other)
    return copy


@pytest.mark.parametrize("name", ["qwen2", "nomic-bert"])
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_values_of_any_type(name: str, file: str, tmp_path: Path) -> None:
    texts = {each: (DATA / name / each).read_text() for each in ("tokenizer.json", "tokenizer_config.json")}
    for each, text in texts.items():
        (tmp_path / each).write_text(text)
    config = Config(DATA / name / "config.json", json.loads((DATA / name / "config.json").read_text()))
    whole = json.loads(texts[file])
    chosen = random.Random(name)
    ways = list(places(whole))
    for path in chosen.sample(ways, min(len(ways), 60)):
        (tmp_path / file).write_text(json.dumps(changed(whole, path, chosen.choice(OTHERS))))
        with suppress(ChaskiError):
            tokenizer_metadata(tmp_path, config, {})


@pytest.mark.parametrize(
    ("place", "other", "reason"),
    [
        (("model", "merges", 0), ["a", "\ud800"], r"a part of a merge is '\\ud800', which is no text"),
        (("added_tokens", 0, "content"), "\udfff", r"token \d+ is '\\udfff', which is no text"),
    ],
)
def test_half_of_a_surrogate_pair(place: tuple[Any, ...], other: Any, reason: str, tmp_path: Path) -> None:
    whole = json.loads((DATA / "qwen2" / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed(whole, place, other)))
    config = Config(DATA / "qwen2" / "config.json", json.loads((DATA / "qwen2" / "config.json").read_text()))
    with pytest.raises(TokenizerError, match=f"tokenizer.json: {reason}"):
        tokenizer_metadata(tmp_path, config, {})
