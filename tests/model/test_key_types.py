"""Metadata of a wrong type: the file is refused with its name and key, or runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import chaski
from chaski.cli.main import chaski_command
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.adapters import adapted_names, random_adapter
from tests.rewriting import all_tensors
from tests.tiers import long_after
from tests.tiny_llama import write_tiny_llama

VISION = Path(__file__).parents[1] / "data" / "vision"
VALUES: dict[str, Any] = {
    "number": 3,
    "negative": -1,
    "large": 2**64 - 1,
    "fraction": 1.5,
    "flag": True,
    "text": "x",
    "empty": "",
    "numbers": [1, 2, 3],
    "no numbers": np.zeros(0, np.int32),
    "fractions": [0.5, 1.5],
    "flags": [True, False],
    "texts": ["a", "b"],
    "arrays": [[1, 2], [3]],
    "arrays of texts": [["a"], ["b", "c"]],
}
READ_EARLY = (
    "general.architecture",
    "general.type",
    "general.name",
    "general.file_type",
    "general.alignment",
    "split.count",
    "tokenizer.chat_template",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.eos_token_ids",
    "tokenizer.ggml.suppress_tokens",
)


def run(path: Path) -> None:
    with chaski.load(path, context=32, num_batch=16, parallel=1) as model:
        model.generate("x", num_predict=1)


def show(path: Path) -> None:
    result = CliRunner().invoke(chaski_command, ["show", "--verbose", str(path)])
    assert isinstance(result.exception, SystemExit | None), result.exception


def stored(path: Path) -> None:
    recipe = Recipe(sources=[path])
    list(create(Store(path.parent / "store"), ModelName.parse("odd"), recipe))


def problem_of(attempt: Callable[[Path], None], path: Path) -> str:
    """Return the error message of a refused file, or an empty string for an accepted one."""
    try:
        attempt(path)
    except chaski.ChaskiError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("key", long_after(4, READ_EARLY))
def test_keys_that_are_read_first(tmp_path: Path, key: str) -> None:
    for index, value in enumerate(VALUES.values()):
        path = tmp_path / f"{index}.gguf"
        try:
            write_tiny_llama(path, layers=1, **{key.replace(".", "__"): value})
        except chaski.ChaskiError:
            continue  # such as an alignment that the writer cannot use
        show(path)
        for attempt in (run, stored):
            problem = problem_of(attempt, path)
            assert not problem or path.name in problem or key in problem, (value, problem)


@pytest.mark.parametrize("key", ["patch_size", "attention.head_count"])
def test_a_projector_that_divides_by_zero_is_named_itself(tmp_path: Path, key: str) -> None:
    path = tmp_path / "odd.gguf"
    with open_gguf(VISION / "gemma3-mmproj.gguf") as file:
        write_gguf(path, {**file.metadata, f"clip.vision.{key}": 0}, all_tensors(file))
    with pytest.raises(chaski.ChaskiError, match=rf"odd\.gguf: clip\.vision\.{key} is 0"):
        chaski.load(VISION / "gemma3.gguf", projector=path, context=64)


@pytest.mark.parametrize("seed", range(3))
def test_all_keys_of_files_that_go_with_a_model(tmp_path: Path, seed: int) -> None:
    """It changes random keys of projectors, adapters and drafts: each is refused or runs."""
    chance = random.Random(seed)
    tiny = write_tiny_llama(tmp_path / "tiny.gguf", layers=1)
    with open_gguf(tiny) as file:
        shapes = {name: file.tensors[name].shape for name in adapted_names(file)}
    adapter = random_adapter(tmp_path / "adapter.gguf", shapes, 1, rank=2)
    kinds = {
        "projector": (VISION / "gemma3.gguf", VISION / "gemma3-mmproj.gguf", "projector"),
        "adapter": (tiny, adapter, "adapters"),
        "draft": (tiny, tiny, "draft"),
    }
    for base, source, option in kinds.values():
        for _ in range(6):
            path = tmp_path / "odd.gguf"
            with open_gguf(source) as file, suppress(chaski.ChaskiError):
                key, value = chance.choice(list(file.metadata)), chance.choice(list(VALUES.values()))
                write_gguf(path, {**file.metadata, key: value}, all_tensors(file))
                files: dict[str, Any] = {option: [path] if option == "adapters" else path}
                with chaski.load(base, context=32, num_batch=16, parallel=1, **files) as model:
                    model.generate("x", num_predict=1)


@pytest.mark.parametrize("key", ["general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"])
def test_an_array_of_numbers_is_named(tmp_path: Path, key: str) -> None:
    path = write_tiny_llama(tmp_path / "odd.gguf", **{key.replace(".", "__"): [1, 2]})
    with pytest.raises(chaski.ChaskiError, match=rf"odd\.gguf: key '{key}' is list\[int\], not str"):
        run(path)


def test_errors_of_tokenizers_name_the_file(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "odd.gguf", tokenizer__ggml__eos_token_id="x")
    with pytest.raises(chaski.ChaskiError, match=r"odd\.gguf: .*eos_token_id is str, expected int"):
        run(path)
