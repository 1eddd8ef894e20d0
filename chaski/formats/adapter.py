"""Reads LoRA adapters in GGUF files, as llama.cpp's `convert_lora_to_gguf.py` writes them.

An adapter changes a matrix W of a model by a product of two narrow ones: W x becomes W x + scale · B (A x)
(Hu et al. 2021, arXiv 2106.09685). Its file has them as `NAME.lora_a` and `NAME.lora_b`, where NAME is that
of the model's tensor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from chaski.errors import AdapterError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.gguf_tensors import TensorInfo
from chaski.formats.quant import QuantType

__all__ = [
    "MAX_RANK",
    "AdapterFile",
    "LoraPair",
    "check_adapter",
    "check_finite",
    "is_finite",
    "open_adapter",
]

MAX_RANK = 1024
"""Ranks beyond this are refused: such an adapter costs as much as the model's own matrices."""

_KEYS = {"adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix"}
_TYPES = (QuantType.F32, QuantType.F16, QuantType.BF16, QuantType.Q8_0)
_SIDES = (".lora_a", ".lora_b")
_EXPONENTS = {QuantType.F32: (np.uint32, 0x7F800000), QuantType.F16: (np.uint16, 0x7C00)}
_EXPONENTS[QuantType.BF16] = (np.uint16, 0x7F80)


class LoraPair(NamedTuple):
    """The two matrices that change one of the model: `a` (rank, columns) and `b` (rows, rank)."""

    a: TensorInfo
    b: TensorInfo

    @property
    def rank(self) -> int:
        """The rank of the change."""
        return self.a.shape[0]

    def scale(self, alpha: float) -> float:
        """The factor of B (A x) by the file: alpha / rank, and 1 where alpha is 0."""
        return alpha / self.rank if alpha else 1.0


class AdapterFile:
    """An open adapter. Everything but its values has been checked; `check_finite` checks those.

    `tensors` has its pairs by the names of the model's tensors, in the order of the file.
    """

    def __init__(self, file: GGUFFile, alpha: float, tensors: Mapping[str, LoraPair]) -> None:
        self.path: Path = file.path
        self.architecture = file.architecture
        self.alpha = alpha
        self._file = file
        self._tensors = dict(tensors)

    @property
    def tensors(self) -> Mapping[str, LoraPair]:
        return MappingProxyType(self._tensors)

    @cached_property
    def rank(self) -> int:
        """The largest rank of its pairs."""
        return max(pair.rank for pair in self._tensors.values())

    def digest(self) -> str:
        """Return the SHA-256 of the data of the computation, in hexadecimal: alpha, names, types, values."""
        found = hashlib.sha256(repr((self.architecture, self.alpha)).encode())
        for name, pair in self._tensors.items():
            for info in pair:
                found.update(repr((name, info.shape, info.type.name)).encode())
                found.update(np.ascontiguousarray(info.data).data)
        return found.hexdigest()

    def close(self) -> None:
        """Forget the tensors; the map goes away with the last array that shows a part of it."""
        self._tensors.clear()
        self._file.close()

    def __enter__(self) -> AdapterFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_adapter(path: str | Path) -> AdapterFile:
    """Open a GGUF adapter and check all that needs neither the model nor the values.

    Raises AdapterError for a file that is not a LoRA adapter, or one of an unsupported kind; and what
    `open_gguf` raises.
    """
    file = open_gguf(path)
    _check_kind(file)
    alpha = file.get("adapter.lora.alpha", float)
    if not math.isfinite(alpha):
        raise AdapterError(f"{file.path}: key 'adapter.lora.alpha' is {alpha}, not a finite number")
    return AdapterFile(file, alpha, _pairs(file))


def check_adapter(adapter: AdapterFile, base: GGUFFile) -> None:
    """Raise AdapterError where an adapter was not made for the model of a file.

    It compares the architecture, and names and shapes of tensors.
    """
    if adapter.architecture != base.architecture:
        raise AdapterError(
            f"{adapter.path}: the adapter is for architecture {adapter.architecture!r:.80}, and "
            f"{base.path.name} is {base.architecture!r:.80}; take the model that it was trained on"
        )
    for name, pair in adapter.tensors.items():
        if name not in base.tensors:
            raise AdapterError(
                f"{adapter.path}: tensor {pair.a.name} changes {name}, which {base.path.name} does not have; "
                "take the model that the adapter was trained on"
            )
        check_shapes(adapter.path, name, pair, base.tensors[name].shape)


def check_shapes(path: Path, name: str, pair: LoraPair, shape: tuple[int, ...]) -> None:
    """Raise AdapterError where a pair does not change a matrix of `shape` (rows, columns)."""
    if len(shape) != 2:
        what = "the matrices of experts" if len(shape) > 2 else "vectors, such as those of norms"
        raise AdapterError(
            f"{path}: tensor {pair.a.name} changes {name} of shape {shape}, and adapters of {what} are not "
            "supported; train the adapter without that module"
        )
    rows, columns = shape
    for info, wanted in ((pair.a, (pair.rank, columns)), (pair.b, (rows, pair.rank))):
        if info.shape != wanted:
            raise AdapterError(
                f"{path}: tensor {info.name} has shape {info.shape}, but the model's {name} {shape} asks "
                f"for {wanted}; take the model that the adapter was trained on"
            )


def check_finite(adapter: AdapterFile) -> None:
    """Read all values, and raise AdapterError for the first tensor with one that is not a finite number."""
    for pair in adapter.tensors.values():
        for info in pair:
            if not is_finite(info):
                raise AdapterError(
                    f"{adapter.path}: tensor {info.name} has values that are not finite numbers; training "
                    "or conversion of the adapter failed"
                )


def is_finite(info: TensorInfo) -> bool:
    """Return whether all values of a tensor of one of the types of adapters are finite numbers."""
    if info.type not in _EXPONENTS:
        return bool(np.isfinite(dequantize(info.data, info.type, info.shape)).all())
    word, exponent = _EXPONENTS[info.type]
    words = np.ascontiguousarray(info.data).view(word)
    return not bool(((words & word(exponent)) == exponent).any())


def _check_kind(file: GGUFFile) -> None:
    kind = file.get("general.type", str, "model")
    if kind != "adapter":
        raise AdapterError(
            f"{file.path}: key 'general.type' is {kind!r:.80}, and an adapter has 'adapter'; convert a PEFT "
            "folder to a GGUF adapter first, and give models as models"
        )
    kind = file.get("adapter.type", str)
    if kind != "lora":
        raise AdapterError(f"{file.path}: adapters of type {kind!r:.80} are not supported; 'lora' is")
    for key in file.metadata:
        if key.startswith("adapter.alora."):
            raise AdapterError(
                f"{file.path}: key {key!r}: activated adapters (aLoRA), which change only the output after "
                "certain tokens, are not supported; train a LoRA adapter"
            )
        if key.startswith("adapter.") and key not in _KEYS:
            raise AdapterError(f"{file.path}: key {key!r:.80} is not known, and may change what is computed")


def _pairs(file: GGUFFile) -> dict[str, LoraPair]:
    found: dict[str, LoraPair] = {}
    for name, info in file.tensors.items():
        base, side = name[:-7], name[-7:]
        if side not in _SIDES:
            raise AdapterError(f"{file.path}: tensor {name}: {_unknown(name)}")
        if base in found:
            continue
        sides = [file.tensors.get(base + side) for side in _SIDES]
        if sides[0] is None or sides[1] is None:
            missing = _SIDES[sides.index(None)]
            raise AdapterError(f"{file.path}: tensor {base}{missing} is missing beside {info.name}")
        found[base] = _checked(file.path, LoraPair(*(side for side in sides if side is not None)))
    if not found:
        raise AdapterError(f"{file.path}: the adapter has no tensors; convert it again")
    return found


def _checked(path: Path, pair: LoraPair) -> LoraPair:
    for info in pair:
        if info.type not in _TYPES:
            types = ", ".join(type.name for type in _TYPES)
            raise AdapterError(
                f"{path}: tensor {info.name} is of type {info.type.name}; adapters have {types}"
            )
        if len(info.shape) != 2:
            raise AdapterError(
                f"{path}: tensor {info.name} has shape {info.shape}; only matrices can be changed, neither "
                "stacks of experts nor vectors: train the adapter without that module"
            )
    if pair.b.shape[1] != pair.rank:
        raise AdapterError(
            f"{path}: tensors {pair.a.name} {pair.a.shape} and {pair.b.name} {pair.b.shape} have no rank in "
            "common; convert the adapter again"
        )
    if pair.rank > MAX_RANK:
        raise AdapterError(
            f"{path}: tensor {pair.a.name} has rank {pair.rank}; at most {MAX_RANK} is supported"
        )
    return pair


def _unknown(name: str) -> str:
    if "magnitude" in name:
        return "weight-decomposed adapters (DoRA) are not supported; train without use_dora"
    return "not part of a LoRA adapter, whose tensors end in .lora_a and .lora_b; convert it again"
