"""Values of other types in the JSON files of checkpoints: a ChaskiError, or the same file."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.convert.config import Config
from chaski.convert.convert import convert

DATA = Path(__file__).parents[1] / "data"
FOLDERS = [DATA / "checkpoints" / name for name in ("llama3", "qwen3next", "gemma4-small", "gemma3n", "bert")]
FOLDERS += [DATA / "tiled" / "internvl", DATA / "llava"]
VALUES: list[Any] = [3, -1, 10**400, 1.5, True, "x", "", [1, 2, 3], [], ["a"], [[1]], {}, {"a": {"b": [1]}}]
VALUES += [float("nan"), [None], 0]
NUM_TRIES = 12


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of values; of lists, only the first two."""
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:2] if isinstance(value, list) else ())
    )
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_value_of_another_type(tmp_path: Path, folder: Path) -> None:
    chance = random.Random(folder.name)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for _ in range(NUM_TRIES):
        path = chance.choice(sorted(copy.glob("*.json")))
        original = path.read_text()
        content = json.loads(original)
        *front, last = chance.choice(list(places(content)) or [("new",)])
        inner = content
        for key in front:
            inner = inner[key]
        inner[last] = chance.choice(VALUES)
        path.write_text(json.dumps(content))
        with suppress(chaski.ChaskiError):
            convert(copy, tmp_path / "out.gguf")
        path.write_text(original)


@pytest.mark.parametrize(
    ("folder", "file", "change"),
    [
        ("checkpoints/qwen35moe", "config.json", {"architectures": [[[1]]]}),
        ("checkpoints/qwen35", "config.json", {"layer_types": [{"a": 1}]}),
        ("llava", "preprocessor_config.json", {"image_std": [{"a": 1}]}),
        ("tiled/internvl", "config.json", {"vision_config": {"image_size": []}}),
    ],
)
def test_the_key_is_named(tmp_path: Path, folder: str, file: str, change: dict[str, Any]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(DATA / folder, copy)
    content = json.loads((copy / file).read_text())
    (key,) = change
    inner = change[key]
    content[key] = {**content[key], **inner} if isinstance(inner, dict) else inner
    (copy / file).write_text(json.dumps(content))
    named = next(iter(inner)) if isinstance(inner, dict) else key
    with pytest.raises(chaski.ChaskiError, match=rf"{file}: '{named}"):
        convert(copy, tmp_path / "out.gguf")


def test_lists_are_of_one_kind() -> None:
    config = Config(Path("config.json"), {"sizes": [1, "x"], "shares": [1, 0.5, 10**400]})
    with pytest.raises(chaski.ModelError, match=r"'sizes\[1\]' is 'x', not int"):
        config.list("sizes", int)
    with pytest.raises(chaski.ModelError, match=r"'shares\[2\]' is 1000.*, not float"):
        config.list("shares", float)
