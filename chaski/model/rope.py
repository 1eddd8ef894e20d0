"""Strict reading of the keys of a rotary embedding: an unknown scaling is an error."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.ml.nn.rope import Yarn, rope_frequencies, yarn_frequencies

__all__ = ["NO_ROPE", "RopeConfig", "read_axes", "read_base", "read_four_axes", "read_rope"]


_LEAST_BASE = 1e-30

NO_ROPE = Rope(np.zeros(0, np.float32))
"""The rope of layers that do not rotate keys, for `KVShape`."""


class RopeConfig(Struct, frozen=True):
    """The rope of layers: `dims` elements of each head are rotated.

    scale: 1/factor of linear scaling, not combined with `yarn`
    magnitude: the factor of queries and keys
    attn_factor: the part of `magnitude` that a file defines for all layers, regardless of their scaling
    """

    dims: int
    base: float
    scale: float = 1.0
    yarn: Yarn | None = None
    magnitude: float = 1.0
    attn_factor: float = 1.0

    def rope(self, *, neox: bool = False, factors: npt.NDArray[np.float32] | None = None) -> Rope:
        """Return the rope. `factors` divide its frequencies; Llama 3 and LongRoPE files contain them."""
        if self.yarn is not None:
            frequencies = yarn_frequencies(self.dims, self.base, self.yarn, factors)
        else:
            frequencies = rope_frequencies(self.dims, self.base, self.scale, factors)
        return Rope(frequencies, neox, self.magnitude)

    def unscaled(self, base: float) -> RopeConfig:
        """Return the rope of layers without the file's scaling, but with its attention factor."""
        return RopeConfig(self.dims, base, magnitude=self.attn_factor, attn_factor=self.attn_factor)

    def untruncated(self) -> RopeConfig:
        """Return the same rope with the ends of YaRN's ramp at fractions of a pair."""
        return self if self.yarn is None else replace(self, yarn=replace(self.yarn, truncate=False))


def read_base(file: GGUFFile, key: str, default: float = 10000.0) -> float:
    """Return the base of frequencies. Raises ModelError for one whose frequencies float32 cannot hold."""
    base = file.get(key, float, default)
    if not _LEAST_BASE <= base < math.inf:
        raise ModelError(f"{file.path}: {key} is {base:g}; it must be finite and at least {_LEAST_BASE:g}")
    return base


def read_rope(file: GGUFFile, head_size: int) -> RopeConfig:
    """Read the keys as llama.cpp does: a factor without a type is linear scaling, 0 is none.

    Raises UnsupportedError for unsupported scalings, since ignoring one would give wrong text.
    """
    arch = file.architecture
    plain = RopeConfig(
        dims=file.get(f"{arch}.rope.dimension_count", int, 0) or head_size,
        base=read_base(file, f"{arch}.rope.freq_base"),
        attn_factor=file.get(f"{arch}.rope.scaling.attn_factor", float, 1.0),
    )
    if plain.dims % 2 or not 2 <= plain.dims <= head_size:
        raise ModelError(
            f"{file.path}: {arch}.rope.dimension_count is {plain.dims}; it must be even, from 2 to the head "
            f"size {head_size}"
        )
    kind = file.get(f"{arch}.rope.scaling.type", str, "") or "linear"
    has_factors = {f"rope_factors_{name}.weight" for name in ("short", "long")} <= file.tensors.keys()
    if kind not in ("none", "default", "linear", "yarn") and not (kind == "longrope" and has_factors):
        raise UnsupportedError(
            f"{file.path}: {arch}.rope.scaling.type = {kind!r:.40} is not supported for this architecture; "
            "supported: none, linear, yarn"
        )
    factor = _factor(file)
    own = float(kind == "yarn")
    extrapolation = file.get(f"{arch}.rope.scaling.yarn_ext_factor", float, own)
    if extrapolation >= 0 and extrapolation != own:
        raise UnsupportedError(
            f"{file.path}: {arch}.rope.scaling.yarn_ext_factor = {extrapolation} is not supported for the "
            f"scaling {kind!r}; only {own} is"
        )
    if kind == "yarn":
        return _with_yarn(file, plain, factor)
    scale = 1.0 if kind in ("none", "default") else 1.0 / factor
    return replace(plain, scale=scale, magnitude=plain.attn_factor)


def read_axes(file: GGUFFile, pairs: int, usual: list[int], *, interleaved: bool = False) -> tuple[int, ...]:
    """Read whether time, row or column rotates each pair: the first pairs, the next, and the rest.

    `interleaved`: rows take every third pair from the second on and columns every third from the third on, up
    to their counts; time takes the others (Qwen 3-VL). `usual` is the default if the file defines none.
    Raises ModelError for counts that do not add up to all pairs.
    """
    key = f"{file.architecture}.rope.dimension_sections"
    sections = [int(each) for each in file.get(key, list[int])] if key in file.metadata else usual
    if len(sections) < 3 or min(sections) < 0 or sum(sections[:3]) != pairs or any(sections[3:]):
        raise ModelError(f"{file.path}: {key} = {sections!r:.40} must split {pairs} pairs into three parts")
    if not interleaved:
        return tuple(axis for axis, count in enumerate(sections[:3]) for _ in range(count))
    return tuple(j % 3 if j < 3 * sections[j % 3] else 0 for j in range(pairs))


def read_four_axes(file: GGUFFile, pairs: int) -> tuple[int, ...]:
    """Read which of four coordinates rotates each pair, in order. Raises ModelError."""
    key = f"{file.architecture}.rope.dimension_sections"
    sections = [int(each) for each in file.get(key, list[int])]
    if len(sections) != 4 or min(sections) < 0 or sum(sections) != pairs:
        raise ModelError(f"{file.path}: {key} = {sections!r:.40} must split {pairs} pairs into four parts")
    return tuple(axis for axis, count in enumerate(sections) for _ in range(count))


def _factor(file: GGUFFile) -> float:
    """Return the factor by which the context exceeds the trained one, from its new key or the old one."""
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        factor = file.get(f"{file.architecture}.{key}", float, 0.0)
        if factor < 0:
            raise ModelError(f"{file.path}: {file.architecture}.{key} = {factor} must not be negative")
        if factor:
            return factor
    return 1.0


def _with_yarn(file: GGUFFile, plain: RopeConfig, factor: float) -> RopeConfig:
    """Return `plain` with YaRN. A log multiplier divides the magnitude, as in DeepSeek and Mistral.

    The original context length defaults to that of the model. `yarn_attn_factor` is ignored, because
    llama.cpp computes it from the factor.
    """
    arch = file.architecture
    prefix = f"{arch}.rope.scaling"
    trained = file.get(f"{prefix}.original_context_length", int, 0)
    yarn = Yarn(
        factor,
        trained=trained or file.get(f"{arch}.context_length", int),
        beta_fast=file.get(f"{prefix}.yarn_beta_fast", float, 32.0),
        beta_slow=file.get(f"{prefix}.yarn_beta_slow", float, 1.0),
    )
    divisor = yarn.magnitude(file.get(f"{prefix}.yarn_log_multiplier", float, 0.0))
    return replace(plain, yarn=yarn, magnitude=plain.attn_factor * yarn.magnitude() / divisor)
