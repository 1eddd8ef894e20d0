"""`convert_adapter`: converts a PEFT LoRA adapter to a GGUF file in llama.cpp's format.

An adapter adds scale · B (A x) to a matrix's product with x, where A is (rank, columns) and B is (rows, rank)
(Hu et al. 2021). GGUF stores A and B under the matrix's name with the suffixes `.lora_a` and `.lora_b`, in
the row and column order of GGUF's matrix. Readers compute the scale as `adapter.lora.alpha` divided by the
rank of B.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.convert.adapter_base import AdapterBase
from chaski.convert.checkpoint import computing, plain_name
from chaski.convert.config import Config, read_json
from chaski.convert.factors import Factors, Pair, combine
from chaski.convert.tensors import TensorShape
from chaski.errors import ModelError, ModelNotFoundError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.mixture import find_mixture
from chaski.formats.quant import QuantType
from chaski.formats.quantize import quantize
from chaski.formats.safetensors import SafeTensor, open_safetensors

__all__ = ["ADAPTER_TYPES", "CONFIG_NAME", "AdapterSummary", "convert_adapter", "is_adapter"]

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
ADAPTER_TYPES = ("F32", "F16", "BF16", "Q8_0")
"""The types for an adapter's matrices. Rows that are not whole Q8_0 blocks are stored as F16."""

_FACTOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
_PLAIN_PATTERN = re.compile(r"[\w.]+")
# With these methods PEFT changes the base's weights before training, and again on loading the adapter.
_CHANGING_THE_BASE = ("corda", "loftq", "lora_ga", "olora", "pissa")
_UNSUPPORTED_LISTS = ("modules_to_save", "layer_replication", "target_parameters", "trainable_token_indices")
_SHOWN = 5


class AdapterSummary(Struct, frozen=True):
    """The sizes of a written adapter. num_matrices: changed matrices of the model. bytes: of tensors."""

    architecture: str
    num_matrices: int
    num_parameters: int
    nbytes: int


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains a PEFT adapter rather than a checkpoint."""
    return (folder / CONFIG_NAME).is_file()


def convert_adapter(
    folder: Path, out: Path, base: Path | GGUFFile | None = None, type: str = "F16"
) -> AdapterSummary:
    """Convert the PEFT adapter in `folder` to the GGUF file `out`, which appears once it is complete.

    base: the model that it was trained for, as a GGUF file, open or not, or as the folder of a checkpoint, of
    which `config.json` is enough. By default that is `folder`, if it has a `config.json`, or the folder that
    the adapter names. type: one of ADAPTER_TYPES.
    Raises ModelError, FormatError, ModelNotFoundError or UnsupportedError.
    """
    if type.upper() not in ADAPTER_TYPES:
        raise UnsupportedError(
            f"an adapter cannot be written as {type}; types are {', '.join(ADAPTER_TYPES)}"
        )
    config = _read_adapter_config(folder)
    pairs = _read_pairs(config, folder / WEIGHTS_NAME)
    found = AdapterBase.open(_base_of(config, folder, base), pairs.keys())
    with computing(found.config):
        changes = dict(_changes(found, pairs))
    mixture, alpha = find_mixture(type), _alpha(config)
    tensors = {
        name: tensor
        for change, factors in changes.items()
        for name, tensor in _tensors(change, factors, mixture.base, alpha)
    }
    write_gguf(
        out,
        {
            "general.architecture": found.architecture,
            "general.type": "adapter",
            "general.name": folder.resolve().name,
            "general.file_type": mixture.number,
            "adapter.type": "lora",
            "adapter.lora.alpha": alpha,
        },
        tensors,
    )
    counts = [math.prod(tensor.shape) for tensor in tensors.values()]
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    return AdapterSummary(found.architecture, len(changes), sum(counts), nbytes)


def _read_adapter_config(folder: Path) -> Config:
    """Read the settings of the adapter. Raises UnsupportedError for settings that GGUF cannot express."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise ModelNotFoundError(f"{path}: no such file; the folder of an adapter has one")
    config = Config(path, read_json(path))
    config.expect("peft_type", "LORA")
    config.expect("bias", "none")
    for key in ("use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"):
        config.expect(key, False)
    for key in _UNSUPPORTED_LISTS:
        if config.values.get(key):
            raise UnsupportedError(
                f"{path}: {key!r} is {config.values[key]!r:.80}, which GGUF cannot express"
            )
    if config.values.get("alora_invocation_tokens"):
        raise UnsupportedError(f"{path}: an adapter that tokens activate (aLoRA) cannot be converted")
    start = config.values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGING_THE_BASE):
        raise UnsupportedError(
            f"{path}: 'init_lora_weights' is {start!r:.80}: the adapter works only with a changed base; save "
            "it with path_initial_model_for_weight_conversion, which turns it into a plain adapter"
        )
    return config


def _base_of(config: Config, folder: Path, base: Path | GGUFFile | None) -> Path | GGUFFile:
    """Return the base model: the given one, the folder itself, or the one named by the adapter."""
    if base is not None:
        return base
    if (folder / "config.json").is_file():
        return folder
    named = config.get("base_model_name_or_path", str, "")
    if named and (Path(named) / "config.json").is_file():
        return Path(named)
    raise ModelNotFoundError(
        f"{folder}: name the model that the adapter was trained for (chaski convert --base), as a GGUF file "
        f"or a folder with its config.json{f'; the adapter says {named!r:.200}' if named else ''}"
    )


def _alpha(config: Config) -> float:
    """Return the alpha for the file. Readers divide it by the rank, so rsLoRA's alpha is adjusted."""
    alpha = config.get("lora_alpha", float)
    return alpha * math.sqrt(config.count("r")) if _is_stabilized(config) else alpha


def _is_stabilized(config: Config) -> bool:
    return config.get("use_rslora", bool, False)


def _read_pairs(config: Config, path: Path) -> dict[str, Pair]:
    """Return the matrices A and B with their scale, by the plain name of the weight they change."""
    if not path.is_file() and path.with_suffix(".bin").is_file():
        raise UnsupportedError(
            f"{path.with_suffix('.bin')} is a pickle, which is not supported; save it as safetensors"
        )
    halves: dict[str, dict[str, SafeTensor]] = {}
    for name, tensor in open_safetensors(path).items():
        match = _FACTOR.fullmatch(name)
        if match is None or not tensor.is_float:
            raise UnsupportedError(f"{path}: tensor {name!r:.200} is no matrix A or B of LoRA in floats")
        half = halves.setdefault(match[1], {})
        if half.setdefault(match[2], tensor) is not tensor:
            raise ModelError(f"{path}: {match[1]!r:.200} has two matrices {match[2]}")
    pairs: dict[str, Pair] = {}
    for module, half in halves.items():
        if half.keys() != {"A", "B"}:
            raise ModelError(f"{path}: {module!r:.200} has no matrix {'B' if 'A' in half else 'A'}")
        name = plain_name(f"{module}.weight")
        if name in pairs:
            raise ModelError(f"{path}: {module!r:.200} is there twice, with other prefixes")
        pairs[name] = _pair(config, module, half["A"], half["B"])
    if not pairs:
        raise ModelError(f"{path}: it has no tensors")
    return pairs


def _pair(config: Config, module: str, first: SafeTensor, second: SafeTensor) -> Pair:
    shapes = first.shape, second.shape
    if any(len(shape) != 2 for shape in shapes) or not 0 < first.shape[0] == second.shape[1]:
        raise ModelError(f"{first.path}: A and B of {module!r:.200} have the shapes {shapes}, no common rank")
    alpha, rank = _alpha_of(config, module), first.shape[0]
    return Pair(first, second, alpha / (math.sqrt(rank) if _is_stabilized(config) else rank))


def _alpha_of(config: Config, module: str) -> float:
    """Return the alpha of a module: from the first pattern that its name ends with, else the common one."""
    patterns = config.part("alpha_pattern")
    for pattern in patterns.values:
        ending = pattern.removeprefix("^")
        if not _PLAIN_PATTERN.fullmatch(ending):
            raise UnsupportedError(
                f"{config.path}: 'alpha_pattern' has {pattern!r:.80}, not the end of a name"
            )
        if module == ending or (ending == pattern and module.endswith(f".{ending}")):
            return _not_zero(patterns, pattern)
    return _not_zero(config, "lora_alpha")


def _not_zero(config: Config, key: str) -> float:
    """Return a number that is not zero, because GGUF readers interpret zero as 'no scale'."""
    value = config.get(key, float)
    if value == 0:
        raise ModelError(f"{config.path}: {key!r} is 0: such an adapter changes nothing")
    return value


def _changes(base: AdapterBase, pairs: Mapping[str, Pair]) -> Iterator[tuple[str, Factors]]:
    """Yield the changed tensors of the base by GGUF name. Every matrix of the adapter must match one."""
    left = set(pairs)
    for planned in base.plan():
        if not pairs.keys().isdisjoint(planned.sources):
            base.check(planned)
            yield planned.name, combine(planned, pairs)
            left -= planned.sources.keys()
    if left:
        names = ", ".join(sorted(left)[:_SHOWN])
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        raise ModelError(f"{base.config.path}: {base.architecture} has no such matrices: {names}{more}")


def _tensors(name: str, factors: Factors, type: QuantType, alpha: float) -> Iterator[tuple[str, LazyTensor]]:
    """Yield the two tensors of a changed matrix."""
    yield f"{name}.lora_a", _lazy(factors.first_shape, type, factors.first)
    yield f"{name}.lora_b", _lazy(factors.second_shape, type, lambda: factors.second(alpha))


def _lazy(shape: TensorShape, type: QuantType, make: Callable[[], NDArray[np.float32]]) -> LazyTensor:
    """Return a tensor whose elements are computed when they are written."""
    fitting = type if shape[-1] % type.block_size == 0 else QuantType.F16
    return LazyTensor(shape, fitting, lambda: [quantize(make(), fitting)])
