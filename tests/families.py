"""Tiny random checkpoints of families, and what transformers and llama.cpp make of them.

tests/data/families/NAME.toml has the configurations of a family, three or more; `python -m
tools.fixtures.make_families NAME` computes NAME.npz. Weights are random numbers that follow from their
names, so no file stores them.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import tomllib
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.safetensors_files import write_safetensors

__all__ = [
    "DENOISING",
    "EMBEDDERS",
    "FIRST",
    "FIRST_EMBEDDERS",
    "NAMES",
    "VARIANTS",
    "checkpoint",
    "converted",
    "expected",
    "first_of_each",
    "random_tensor",
    "settings_of",
    "texts",
]

F32 = NDArray[np.float32]
DATA = Path(__file__).parent / "data" / "families"
TOKENIZER = DATA.parent / "checkpoints" / "qwen3"
NUM_TOKENS = 300  # of the tokenizer; the vocabulary of a configuration is not smaller


def settings_of(family: str) -> dict[str, dict[str, Any]]:
    """Return the settings of each configuration of a family."""
    return tomllib.loads((DATA / f"{family}.toml").read_text())


NAMES = sorted(path.stem for path in DATA.glob("*.toml"))
_ALL = {f"{family}/{name}": each for family in NAMES for name, each in settings_of(family).items()}
VARIANTS = [variant for variant, settings in _ALL.items() if "embeds" not in settings]
"""The configurations of all families that make text, as FAMILY/NAME."""

EMBEDDERS = [variant for variant, settings in _ALL.items() if "embeds" in settings]
"""The configurations of all families that make vectors."""

DENOISING = [family for family in NAMES if any(each.get("denoises") for each in settings_of(family).values())]
"""The families whose answers do not grow token by token."""

_PLACES = (
    "architectures/{}.gguf",
    "checkpoints/{}/modules.json",
    "embedders/{}.gguf",
    "vision/{}.gguf",
    "{}/model.safetensors",
)
_STORED = [
    family
    for family in NAMES
    if any((DATA.parent / place.format(family.replace("_", "-"))).exists() for place in _PLACES)
]
"""The families that also have a stored file, with which other tests compare bits."""


def first_of_each(variants: Sequence[str]) -> list[str]:
    """Return the first configuration of each family."""
    found = {variant.partition("/")[0]: variant for variant in reversed(variants)}
    return [*reversed(found.values())]


FIRST = [
    variant for variant in first_of_each(VARIANTS) if variant.partition("/")[0] not in [*DENOISING, *_STORED]
]
"""The first configuration of each other family whose answers grow token by token."""

FIRST_EMBEDDERS = [
    variant for variant in first_of_each(EMBEDDERS) if variant.partition("/")[0] not in _STORED
]
"""The first configuration of each other family that makes vectors."""


@cache
def _results(family: str) -> dict[str, dict[str, Any]]:
    with np.load(DATA / f"{family}.npz") as arrays:
        about: dict[str, dict[str, Any]] = json.loads(str(arrays["about"]))
        for key in arrays.files:
            variant, _, name = key.rpartition(".")
            if variant:
                about[variant][name] = arrays[key]
    return about


def expected(variant: str) -> dict[str, Any]:
    """Return everything that is known of a configuration.

    config: the checkpoint's configuration. tensors: names and shapes in the checkpoint. seed: of the weights.
    integers: the tensors with whole numbers, which are not random, if there are some.
    prompt: token ids. places: positions in it. logits: those after the places, (places, vocabulary).
    tokens: greedy tokens after the prompt. file: metadata and tensors' digests by llama.cpp's converter.
    lengths, vectors: for a model that makes vectors, the first tokens of the prompt that each text has, and
    its normalized vector, (texts, size).
    """
    family, _, name = variant.partition("/")
    return _results(family)[name]


def texts(variant: str) -> list[list[int]]:
    """Return the texts whose vectors are known, as token ids."""
    known = expected(variant)
    return [known["prompt"][:length].tolist() for length in known["lengths"]]


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> F32:
    """Return the weights of a tensor; norms and gains are near 1, and no number needs more than bfloat16."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    values = rng.standard_normal(shape, np.float32)
    is_norm = "norm" in name.lower() or name == "model.transformer.ln_f.weight"
    is_gain = "_gain." in name
    if is_gain or (is_norm and name.endswith("weight") and len(shape) == 1):
        values = 1 + 0.2 * values
    elif name.endswith(".eps"):
        values *= np.float32(1e-6)  # a bound near zero
    elif len(shape) < 2:
        values *= 0.2
    elif "embed" in name or "wte" in name:
        values *= 0.5
    else:
        values *= 1.2 / math.sqrt(math.prod(shape[2:]) * shape[1])
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def checkpoint(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, list[int]],
    seed: int,
    integers: dict[str, list[int]] | None = None,
) -> Path:
    """Write a checkpoint with random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for path in TOKENIZER.glob("tokenizer*.json"):
        shutil.copyfile(path, folder / path.name)
    weights: dict[str, tuple[str, NDArray[Any]]] = {
        name: ("F32", random_tensor(name, tuple(shape), seed)) for name, shape in tensors.items()
    }
    weights |= {name: ("I64", np.array(values, np.int64)) for name, values in (integers or {}).items()}
    write_safetensors(folder / "model.safetensors", weights)
    return folder


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="chaski-families-")


@cache
def converted(variant: str) -> Path:
    """Return the GGUF file of a configuration without its encoder of images, converted by chaski to F32."""
    from chaski.convert.config import read_config
    from chaski.convert.convert import convert
    from chaski.convert.families import find_family

    known = expected(variant)
    folder = Path(_scratch().name) / variant
    checkpoint(folder, known["config"], known["tensors"], known["seed"], known.get("integers"))
    has_vision = "vision_config" in known["config"] and find_family(read_config(folder)).vision is not None
    projector = folder / "mmproj.gguf" if has_vision else None
    convert(folder, folder / "model.gguf", "F32", projector=projector)
    (folder / "model.safetensors").unlink()
    return folder / "model.gguf"
