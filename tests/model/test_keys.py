"""Every key of llama.cpp is read, refused by name, or harmless, whatever the architecture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.model.keys import HARMLESS, READ, READ_BY, REFUSED, check_keys
from chaski.model.registry import build_model
from tests.rewriting import all_tensors

DATA = Path(__file__).parents[1] / "data"
FILES = [*sorted((DATA / "architectures").glob("*.gguf")), *(DATA / "embedders").glob("*.gguf")]
# Of encoders, of files and of tokenizers, which have rules of their own.
OTHERS = ("clip.", "diffusion.", "general.", "imatrix.", "split.", "tokenizer.", "adapter.", "xielu.")
# What llama.cpp reads and the package `gguf` has no constant for.
MORE = {"rope.scale_linear", "rope.scaling.alpha", "attention.value_scale", "attention.output_scale"}


def keys_of(group: type) -> Iterator[str]:
    for name, value in vars(group).items():
        if name.startswith("__"):
            continue
        if isinstance(value, type):
            yield from keys_of(value)
        elif isinstance(value, str) and value.startswith("{arch}."):
            yield value.removeprefix("{arch}.")


def test_every_key_has_its_place() -> None:
    known = READ | REFUSED.keys() | HARMLESS.keys()
    gguf = pytest.importorskip("gguf")
    wanted = {key for key in keys_of(gguf.constants.Keys) if "{" not in key and not key.startswith(OTHERS)}
    assert len(wanted) > 100
    assert wanted | MORE <= known
    assert not READ & (REFUSED.keys() | HARMLESS.keys())
    assert REFUSED.keys() & HARMLESS.keys() == set()


def with_key(file: GGUFFile, name: str, value: Any) -> GGUFFile:
    return GGUFFile(file.path, {**file.metadata, f"{file.architecture}.{name}": value}, dict(file.tensors))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_would_change_numbers_is_refused_by_name(path: Path) -> None:
    file = open_gguf(path)
    check_keys(file)
    for name, neutral in REFUSED.items():
        if file.architecture in READ_BY.get(name, ()):
            continue
        strange: Any = "gelu" if isinstance(neutral[0], str) else True if neutral[0] is False else 7
        for value in (strange, np.array([7, 7])):
            with pytest.raises(UnsupportedError, match=rf"{file.architecture}\.{name} = .* changes what"):
                build_model(with_key(file, name, value))
        for value in neutral:
            check_keys(with_key(file, name, value))
        check_keys(with_key(file, name, np.array([neutral[0]] * 3)))


def test_values_that_mean_the_same_as_another_key() -> None:
    file = open_gguf(DATA / "architectures" / "qwen3.gguf")
    for name, value in (
        ("attention.sliding_window", 256),
        ("attention.key_length_swa", 24),
        ("embedding_length_out", 64),
        ("rope.freq_base_swa", 1000.0),
    ):
        check_keys(with_key(file, name, value))


def changed(source: Path, target: Path, **metadata: Any) -> Path:
    """Write a model again with other metadata; `__` stands for `.` in keys."""
    file = open_gguf(source)
    entries = {f"{file.architecture}.{key.replace('__', '.')}": value for key, value in metadata.items()}
    write_gguf(target, {**file.metadata, **entries}, all_tensors(file))
    return target


@pytest.mark.parametrize("name", ["granite", "granitemoe"])
def test_granite_without_a_rope(tmp_path: Path, name: str) -> None:
    """llama.cpp reads `finetuned` as a switch. Positions that are scaled to nothing mean the same."""
    source = DATA / "architectures" / f"{name}.gguf"
    rope = {"rope__scaling__type": "linear", "rope__scaling__factor": 1e30}
    paths = [
        changed(source, tmp_path / "off.gguf", rope__scaling__finetuned=False),
        changed(source, tmp_path / "scaled.gguf", **rope),
        changed(source, tmp_path / "on.gguf", rope__scaling__finetuned=True),
        source,
    ]
    found = []
    for path in paths:
        with chaski.load(path, context=32) as model:
            found.append(np.asarray(model.logits([5, 9, 3, 44, 21, 7])))
    off, scaled, on, plain = found
    np.testing.assert_allclose(off, scaled, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(on, plain)
    assert abs(off - on).max() > 0.01


def test_llama_4_without_chunks_is_refused(tmp_path: Path) -> None:
    source = DATA / "architectures" / "llama4.gguf"
    path = changed(source, tmp_path / "whole.gguf", attention__sliding_window=0)
    with pytest.raises(UnsupportedError, match=r"llama4\.attention\.sliding_window = 0 means"):
        chaski.load(path, context=32)
