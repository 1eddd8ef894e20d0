"""The methods of quantization whose checkpoints can be decoded, by `quantization_config.quant_method`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import TypeAlias

from msgspec import Struct

from chaski.convert.config import Config, read_json
from chaski.convert.quantized.auto_round import decode_auto_round
from chaski.convert.quantized.awq import decode_awq
from chaski.convert.quantized.bitnet import decode_bitnet
from chaski.convert.quantized.bitsandbytes import decode_int8, decode_nf4
from chaski.convert.quantized.compressed import decode_packed
from chaski.convert.quantized.gptq import decode_gptq
from chaski.convert.quantized.mlx import decode_mlx
from chaski.convert.quantized.module import Decoded, Stored
from chaski.convert.quantized.pairs import decode_blocks, decode_pairs
from chaski.convert.quantized.scaled import decode_scaled
from chaski.errors import UnsupportedError
from chaski.formats.safetensors import SafeTensor

__all__ = ["Decoding", "decode_stored"]

Decode: TypeAlias = Callable[[Stored], Iterator[Decoded]]

_METHODS: Mapping[str, tuple[Decode, ...]] = {
    "auto-round": (decode_auto_round,),
    "awq": (decode_awq,),
    "bitnet": (decode_bitnet,),
    "bitsandbytes": (decode_nf4, decode_int8),
    "compressed-tensors": (decode_packed, decode_scaled, decode_pairs),
    "fp8": (decode_scaled, decode_pairs),
    "fbgemm_fp8": (decode_scaled,),
    "gptq": (decode_gptq,),
    "mlx": (decode_mlx,),
    "modelopt": (decode_scaled, decode_pairs),
    "mxfp4": (decode_blocks,),
    "intel/auto-round": (decode_auto_round,),
    "quark": (decode_scaled, decode_pairs),
}
# Files that older checkpoints have instead of `quantization_config`, and the methods that write them.
_FILES = {"hf_quant_config.json": "modelopt", "quant_config.json": "awq", "quantize_config.json": "gptq"}
# Methods of settings without a `quant_method`, by a key that only theirs have.
_IMPLIED = {
    "load_in_4bit": "bitsandbytes",
    "load_in_8bit": "bitsandbytes",
    "config_groups": "compressed-tensors",
}
# Scales of activations and of cached keys and values: rounding that this conversion leaves out.
_UNUSED = (
    r".*[._](input|output|activation)_(global_)?(scale(_inv|_ub)?|zero_point)",
    r".*[._][qkv]_(scale|zero_point)",
)


class Decoding(Struct, frozen=True):
    """The tensors of a checkpoint with quantized weights, by plain name.

    tensors: the stored ones and the decoded ones, which replace stored ones of the same name.
    parts: the stored tensors that each decoded one stands for.
    unused: patterns of names of stored tensors that change no weight.
    """

    tensors: Mapping[str, SafeTensor]
    parts: Mapping[str, tuple[str, ...]]
    unused: tuple[str, ...] = ()

    @property
    def added(self) -> set[str]:
        """The decoded tensors without a stored one of the same name."""
        return {name for name, parts in self.parts.items() if name not in parts}

    def used(self, names: Set[str]) -> set[str]:
        """Return the stored tensors that the tensors `names` use."""
        return {part for name in names for part in self.parts.get(name, (name,))}


def decode_stored(config: Config, tensors: Mapping[str, SafeTensor]) -> Decoding:
    """Return the tensors of a checkpoint, with weights as `quantization_config` says that they are stored.

    Raises UnsupportedError for an unknown method or scheme, ModelError for tensors that do not fit together.
    """
    settings = _settings(config)
    if not settings.values:
        _refuse_without_scales(tensors)
        return Decoding(tensors, {})
    method = _method(settings)
    if method not in _METHODS:
        known = ", ".join(sorted(_METHODS))
        raise UnsupportedError(
            f"{config.path}: weights stored by {method!r:.80} cannot be decoded; known are {known}; convert "
            "a checkpoint in BF16 or F16 instead"
        )
    stored = Stored(settings, tensors)
    decoded = {each.tensor.name: each for decode in _METHODS[method] for each in decode(stored)}
    parts = {name: each.parts for name, each in decoded.items()}
    consumed = {part for each in parts.values() for part in each}
    _refuse_without_scales({name: each for name, each in tensors.items() if name not in consumed})
    return Decoding({**tensors, **{name: each.tensor for name, each in decoded.items()}}, parts, _UNUSED)


def _method(settings: Config) -> str:
    for key, method in _IMPLIED.items():
        if key in settings:
            return settings.get("quant_method", str, method)
    return settings.get("quant_method", str)


def _settings(config: Config) -> Config:
    """Return the settings of the quantization, empty if the weights are plain numbers."""
    parts = config, config.part("text_config")
    found = [part.part(key) for part in parts for key in ("quantization_config", "compression_config")]
    if "quantization" in config and not any("quant_method" in each for each in found):
        return Config(config.path, {"quant_method": "mlx", **config.part("quantization").values})
    for each in found:
        if each.values:
            return each
    for name, method in _FILES.items():
        path = config.path.with_name(name)
        if values := read_json(path):
            return Config(path, {"quant_method": method, **values})
    return Config(config.path, {})


def _refuse_without_scales(tensors: Mapping[str, SafeTensor]) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_float and not tensor.is_integer:
            raise UnsupportedError(
                f"{tensor.path}: tensor {name!r} is {tensor.dtype} and has no scales that config.json's "
                "'quantization_config' explains; convert a checkpoint in BF16 or F16 instead"
            )
