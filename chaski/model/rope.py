"""What a file says about its rotary embedding, read strictly: a scaling that is not known is an error."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.ml.nn.rope import Yarn, rope_frequencies, yarn_frequencies

__all__ = ["RopeConfig", "read_rope"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """`dims` elements of each head are turned. `scale` is 1/factor of linear scaling; `yarn` excludes it."""

    dims: int
    base: float
    scale: float = 1.0
    yarn: Yarn | None = None
    magnitude: float = 1.0

    def rope(self, *, halves: bool = False, factors: npt.NDArray[np.float32] | None = None) -> Rope:
        """`factors` are the divisors of `rope_freqs.weight`, with which files carry Llama 3's scaling."""
        if self.yarn is not None:
            frequencies = yarn_frequencies(self.dims, self.base, self.yarn)
        else:
            frequencies = rope_frequencies(self.dims, self.base, self.scale, factors)
        return Rope(frequencies, halves, self.magnitude)

    def unscaled(self, base: float) -> RopeConfig:
        """The rope of layers to which the file's scaling does not apply."""
        return RopeConfig(self.dims, base)

    def untruncated(self) -> RopeConfig:
        """The same with YaRN's ramp from and to fractions of a pair."""
        return self if self.yarn is None else replace(self, yarn=replace(self.yarn, truncate=False))


def read_rope(file: GGUFFile, head_size: int) -> RopeConfig:
    """Raises UnsupportedError for scalings that are not here: ignoring one would give wrong text."""
    arch = file.architecture
    plain = RopeConfig(
        dims=file.get(f"{arch}.rope.dimension_count", int, head_size),
        base=file.get(f"{arch}.rope.freq_base", float, 10000.0),
    )
    if plain.dims % 2 or not 2 <= plain.dims <= head_size or not plain.base > 0:
        raise ModelError(
            f"{file.path}: {arch}.rope.dimension_count = {plain.dims} with the base {plain.base}: a head of "
            f"{head_size} elements is turned in pairs, with a positive base"
        )
    kind = file.get(f"{arch}.rope.scaling.type", str, "none")
    if kind == "none":
        return plain
    if kind not in ("linear", "yarn"):
        raise UnsupportedError(
            f"{file.path}: {arch}.rope.scaling.type = {kind!r} is not supported for this architecture; "
            "supported: none, linear, yarn"
        )
    factor = file.get(f"{arch}.rope.scaling.factor", float, 1.0)
    if not factor > 0:
        raise ModelError(f"{file.path}: {arch}.rope.scaling.factor = {factor} must be positive")
    return replace(plain, scale=1.0 / factor) if kind == "linear" else _with_yarn(file, plain, factor)


def _with_yarn(file: GGUFFile, plain: RopeConfig, factor: float) -> RopeConfig:
    """With a log multiplier m the magnitude is divided by that for m, as DeepSeek and Mistral do."""
    prefix = f"{file.architecture}.rope.scaling"
    if file.get(f"{prefix}.yarn_ext_factor", float, 1.0) != 1.0:
        raise UnsupportedError(f"{file.path}: {prefix}.yarn_ext_factor is not 1, which is not supported")
    if file.get(f"{prefix}.yarn_attn_factor", float, 1.0) != 1.0:
        raise UnsupportedError(f"{file.path}: {prefix}.yarn_attn_factor is not 1, which is not supported")
    yarn = Yarn(
        factor,
        trained=file.get(f"{prefix}.original_context_length", int),
        beta_fast=file.get(f"{prefix}.yarn_beta_fast", float, 32.0),
        beta_slow=file.get(f"{prefix}.yarn_beta_slow", float, 1.0),
    )
    own = file.get(f"{prefix}.attn_factor", float, 1.0)
    divisor = yarn.magnitude(file.get(f"{prefix}.yarn_log_multiplier", float, 0.0))
    return replace(plain, yarn=yarn, magnitude=own * yarn.magnitude() / divisor)
