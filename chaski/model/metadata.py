"""Checks that refuse numbers that no model can have, since they would break chaski or exhaust memory.

A file comes from a stranger, so its sizes are checked against the tensors that it contains before anything
is built from them. Numbers that contradict each other are found when the model is built, and the error
names the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from chaski.errors import ChaskiError, ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile

__all__ = ["blamed_on", "check_is_model", "check_metadata"]

_MAX_NUMBER = 2**31 - 1
_FACTORS = ("ple.layer_multipliers",)  # of a hash
_MAX_FACTOR = 2**63 - 1
_LONGEST_REASON = 300  # characters; the text of an error may be arbitrarily long
# Sizes of tensors, so none can exceed the largest side of any tensor.
_SIZES = ("embedding_length", "head_count", "head_count_kv", "key_length", "value_length", "expert_count")
_MAY_BE_INFINITE = ("activation_sparsity_scale",)  # minus infinity for layers that are not sparse
_DIVISORS = (
    *("block_count", "embedding_length", "attention.head_count", "rope.dimension_count"),
    "vision.patch_size",
)
_UNUSED = ("deepseek2-ocr.rope.dimension_count",)  # a size of latent attention, which its files give as 0
_OF_RECURRENCES = ("ssm.state_size", "wkv.head_size")
# An encoder without blocks, as in Gemma 4 12B, has no heads.
_DIVISORS_OF_ENCODERS = (*_DIVISORS, "vision.attention.head_count")

_NO_MODELS = {
    "adapter": "a LoRA adapter, not a model: give it along with its model, as chaski.load(model, "
    "adapters=...), with --adapter, or as ADAPTER of a Modelfile",
    "imatrix": "an importance matrix for quantizing a model, not a model",
    "mmproj": "a projector (an encoder of images), not a model: give it along with its model, as "
    "chaski.load(model, projector=...), or as a second FROM of a Modelfile",
    "draft": "a draft, which proposes tokens for the model that it was trained with, not a model: give it "
    "along with that model, as chaski.load(model, draft=...), with --draft, or as DRAFT of a Modelfile",
    "controlvector": "a control vector, which steers a model, not a model; this version cannot apply it",
}
_KINDS = {
    "clip": "mmproj",
    "controlvector": "controlvector",
    "dflash": "draft",
    "eagle3": "draft",
    "gemma4-assistant": "draft",
    "imatrix": "imatrix",
}
"""The type of a file by its architecture, for files without `general.type`."""


def check_is_model(file: GGUFFile) -> None:
    """Raise UnsupportedError for a file that is not a model; the message names the kind of the file."""
    kind = file.metadata.get("general.type")
    if not isinstance(kind, str) or kind not in _NO_MODELS:
        arch = file.metadata.get("general.architecture")
        kind = "adapter" if "adapter.type" in file.metadata else _KINDS.get(str(arch), "")
    if kind in _NO_MODELS:
        raise UnsupportedError(f"{file.path}: this is {_NO_MODELS[kind]}")
    if not file.tensors:
        what = "a vocabulary without a model" if "tokenizer.ggml.tokens" in file.metadata else "not a model"
        raise UnsupportedError(f"{file.path}: this is {what}: it has no tensors")


def check_metadata(file: GGUFFile) -> None:
    """Raise ModelError for a number of the architecture that no model can have."""
    prefix = f"{file.architecture}."
    largest = max((side for tensor in file.tensors.values() for side in tensor.shape), default=0)
    divisors = _DIVISORS_OF_ENCODERS if file.metadata.get(f"{prefix}vision.block_count") else _DIVISORS
    for key in file.metadata:
        if key.startswith(prefix):
            name = key.removeprefix(prefix)
            limit = _limit(name, largest, len(file.tensors))
            # In files of Mamba and RWKV, no layer needs to attend.
            is_recurrent = any(f"{prefix}{size}" in file.metadata for size in _OF_RECURRENCES)
            may_be_zero = (
                (is_recurrent and name == "attention.head_count")
                # Beside Kimi Delta Attention, attention may read no positions.
                or (name == "rope.dimension_count" and f"{prefix}kda.head_dim" in file.metadata)
                or isinstance(file.metadata[key], np.ndarray)
            )
            least = 1 if name in divisors and key not in _UNUSED and not may_be_zero else 0
            for number in () if name in _MAY_BE_INFINITE else _numbers(file.metadata[key]):
                _check(file, key, number, least, limit)


@contextmanager
def blamed_on(file: GGUFFile) -> Iterator[None]:
    """Raise ModelError if numbers of the file do not fit together while a model is built from them."""
    try:
        yield
    except ChaskiError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        reason = f"{error}"[:_LONGEST_REASON]
        raise ModelError(f"{file.path}: its metadata and tensors do not form a model: {reason}") from error


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, np.ndarray):
        yield from value.tolist()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _limit(name: str, largest: int, num_tensors: int) -> int:
    if name.endswith("block_count"):
        return num_tensors
    if name in _FACTORS:
        return _MAX_FACTOR
    is_size = name.rpartition(".")[2] in _SIZES or name == "rope.dimension_count"
    return largest if is_size else _MAX_NUMBER


def _check(file: GGUFFile, key: str, number: int | float, least: int, limit: int) -> None:
    if isinstance(number, float):
        if not math.isfinite(number):
            raise ModelError(f"{file.path}: {key} is {number}; it must be a finite number")
    elif not least <= number <= limit:
        raise ModelError(f"{file.path}: {key} is {number}; with these tensors it must be {least} to {limit}")
