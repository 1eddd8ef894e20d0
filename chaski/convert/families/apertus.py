"""Apertus (Swiss AI 2025), whose activations have numbers that checkpoints store as tensors."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import llama
from chaski.convert.metadata import Metadata
from chaski.errors import ModelError
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import SafeTensor

_NUMBERS = ("alpha_n", "alpha_p", "beta", "eps")


def metadata(config: Config) -> Metadata:
    return llama.metadata(config, activation="xielu")


def measured(config: Config, tensors: Mapping[str, SafeTensor]) -> Metadata:
    layers = range(config.count("num_hidden_layers"))
    return {f"xielu.{name}": [_number(config, tensors, layer, name) for layer in layers] for name in _NUMBERS}


def _number(config: Config, tensors: Mapping[str, SafeTensor], layer: int, name: str) -> float:
    tensor = tensors.get(f"layers.{layer}.mlp.act_fn.{name}")
    if tensor is None or tensor.data.size != 1:
        raise ModelError(f"{config.path}: layer {layer} has no number {name!r} of its activation")
    return float(as_float32(tensor.data).reshape(-1)[0])


def placeholders(config: Config) -> Metadata:
    return {f"xielu.{name}": [0.0] * config.count("num_hidden_layers") for name in _NUMBERS}


FAMILY = derived_family(
    "apertus",
    metadata,
    placeholders=placeholders,
    measured=measured,
    unused=(r"layers\.\d+\.mlp\.act_fn\.\w+",),
)
CHECKPOINTS = ("ApertusForCausalLM",)
