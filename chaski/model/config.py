"""Reading a model's metadata strictly: what would change the maths and is not known here is an error."""

from __future__ import annotations

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile

__all__ = ["refuse", "rope_scale", "vocab_size"]


def refuse(file: GGUFFile, key: str, allowed: int, what: str) -> None:
    """Raise UnsupportedError when the file sets the number `key` to anything but `allowed`."""
    value = file.get(key, int, allowed)
    if value != allowed:
        raise UnsupportedError(
            f"{file.path}: {key} = {value}: {what} are not supported for this architecture yet"
        )


def vocab_size(file: GGUFFile) -> int:
    """The number of tokens: the rows of the embedding table, which is what logits are computed for."""
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing")
    return file.tensors["token_embd.weight"].shape[0]


def rope_scale(file: GGUFFile) -> float:
    """The frequency multiplier of the file's rope scaling: 1 for none, 1/factor for linear.

    Llama 3 scaling is not named in metadata: files carry its divisors in `rope_freqs.weight`.
    Raises UnsupportedError for any other type, because ignoring it would give wrong text.
    """
    arch = file.architecture
    kind = file.get(f"{arch}.rope.scaling.type", str, "none")
    factor = file.get(f"{arch}.rope.scaling.factor", float, 1.0)
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise UnsupportedError(
            f"{file.path}: {arch}.rope.scaling.type = {kind!r} is not supported for this architecture; "
            "supported: none, linear"
        )
    if not factor > 0:
        raise ModelError(f"{file.path}: {arch}.rope.scaling.factor = {factor} must be positive")
    return 1.0 / factor
