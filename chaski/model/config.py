"""Strict reading of a model's metadata: an unknown key that would change results is an error."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.image import Normal
from chaski.kvcache import KVShape
from chaski.ml.graph import Rope
from chaski.model.pooling import Pooling, classifier_of, read_pooling
from chaski.model.rope import RopeConfig, read_rope

__all__ = [
    "DecoderConfig",
    "is_recurrent",
    "kv_heads",
    "num_tokens",
    "of_layers",
    "patches_a_side",
    "read_normal",
    "refuse",
    "same_in_all_layers",
    "sliding_layers",
]


class DecoderConfig(Struct, frozen=True):
    """The metadata that all transformer decoders share; a model reads the rest of its keys itself.

    `ffn_sizes` and `kv_heads` contain a number for each layer; models whose layers are alike use `ffn_size`
    and `num_kv_heads`.
    """

    file: str
    vocab_size: int
    context_length: int
    hidden_size: int
    ffn_sizes: tuple[int, ...]
    num_layers: int
    num_heads: int
    kv_heads: tuple[int, ...]
    head_size: int
    value_size: int
    eps: float
    rope: RopeConfig
    pooling: Pooling | None
    num_labels: int
    classifier: str
    classifier_activation: str
    is_causal: bool
    values_in_keys: bool = False

    @classmethod
    def read(
        cls,
        file: GGUFFile,
        eps: str = "layer_norm_rms_epsilon",
        is_causal: bool = True,
        pooling: Pooling | None = None,
        vocab_size: int | None = None,
        num_heads: int | None = None,
        denoises: bool = False,
    ) -> DecoderConfig:
        """Read the configuration of a file. Defaults apply to keys that the file does not contain.

        eps: the key of the norms' epsilon
        vocab_size: the target's, for a draft without embeddings
        num_heads: the heads of a layer, for a model whose layers have different numbers of them
        denoises: a model whose tokens all see each other makes text

        Raises ModelError for a key that is missing or has another type, UnsupportedError for a value.
        """
        arch = file.architecture
        hidden_size = file.get(f"{arch}.embedding_length", int)
        num_heads = num_heads or same_in_all_layers(file, f"{arch}.attention.head_count")
        # Ollama's converter writes 0 for values that a checkpoint does not contain.
        head_size = file.get(f"{arch}.attention.key_length", int, 0) or hidden_size // num_heads
        pooling = read_pooling(file) or pooling
        is_causal = file.get(f"{arch}.attention.causal", bool, is_causal)
        if not is_causal and pooling is None and vocab_size is None and not denoises:
            raise ModelError(
                f"{file.path}: {arch}.pooling_type is 0 (none) or missing, though all tokens see each "
                "other, so the file does not define how it makes embeddings; convert the checkpoint again"
            )
        num_layers = file.get(f"{arch}.block_count", int)
        classifier = (classifier_of(file) or "") if pooling is Pooling.RANK else ""
        return cls(
            file=f"{file.path}: {arch}",
            vocab_size=num_tokens(file) if vocab_size is None else vocab_size,
            context_length=file.get(f"{arch}.context_length", int),
            hidden_size=hidden_size,
            ffn_sizes=_ffn_sizes(file, num_layers),
            num_layers=num_layers,
            num_heads=num_heads,
            kv_heads=kv_heads(file, num_layers),
            head_size=head_size,
            value_size=file.get(f"{arch}.attention.value_length", int, 0) or head_size,
            eps=file.get(f"{arch}.attention.{eps}", float),
            rope=read_rope(file, head_size),
            pooling=pooling,
            num_labels=file.tensors[classifier].shape[0] if classifier else 0,
            classifier=classifier,
            classifier_activation=file.get(f"{arch}.classifier.activation", str, "tanh"),
            is_causal=is_causal,
        )

    @property
    def ffn_size(self) -> int:
        """Return the size of all feed-forward blocks. Raises UnsupportedError if layers differ."""
        return self._same("feed_forward_length", self.ffn_sizes)

    @property
    def num_kv_heads(self) -> int:
        """Return the key/value heads of the layers that attend. Raises UnsupportedError if these differ."""
        return self._same("attention.head_count_kv", tuple(heads for heads in self.kv_heads if heads))

    def kv_shape(self, rope: Rope | None = None) -> KVShape:
        """Return what a layer stores for a token: keys that `rope` rotates, and values."""
        sizes = self.num_kv_heads, self.head_size, self.value_size
        return KVShape(*sizes, rope, values_in_keys=self.values_in_keys)

    def _same(self, key: str, numbers: tuple[int, ...]) -> int:
        if len(set(numbers)) > 1:
            raise UnsupportedError(
                f"{self.file}.{key} differs from layer to layer, which is not supported for this architecture"
            )
        return max(numbers, default=0)


def same_in_all_layers(file: GGUFFile, key: str) -> int:
    """Return a number that files store once, or once for each layer, 0 for layers without such a part.

    Raises UnsupportedError if layers differ.
    """
    if not isinstance(file.metadata.get(key), np.ndarray):
        return file.get(key, int)
    numbers = set(file.get(key, list[int]).tolist()) - {0}
    if len(numbers) != 1:
        raise UnsupportedError(
            f"{file.path}: {key} differs from layer to layer, which is not supported for this architecture"
        )
    return int(numbers.pop())


def kv_heads(file: GGUFFile, num_layers: int) -> tuple[int, ...]:
    """Return the key/value heads of each layer; files store one number for all layers or one for each."""
    key = f"{file.architecture}.attention.head_count_kv"
    if key not in file.metadata:
        return (same_in_all_layers(file, f"{file.architecture}.attention.head_count"),) * num_layers
    return of_layers(file, key, num_layers)


def of_layers(file: GGUFFile, key: str, num_layers: int) -> tuple[int, ...]:
    """Return a number for each layer; files store one for all layers or one for each."""
    if isinstance(file.metadata.get(key), np.ndarray):
        return tuple(int(number) for number in file.get(key, list[int]))
    return (file.get(key, int),) * num_layers


def _ffn_sizes(file: GGUFFile, num_layers: int) -> tuple[int, ...]:
    """Return the sizes of feed-forward blocks, 0 if the file omits them because all layers have experts."""
    key = f"{file.architecture}.feed_forward_length"
    if key not in file.metadata and file.get(f"{file.architecture}.expert_count", int, 0):
        return (0,) * num_layers
    return of_layers(file, key, num_layers)


def is_recurrent(file: GGUFFile, num_layers: int, interval: int) -> list[bool]:
    """Return a flag for each layer: True for a layer that does not attend.

    The file marks these layers by a flag or by zero key/value heads. Otherwise every `interval`-th layer
    attends; the file may define another interval. Files count blocks for multi-token prediction as layers.
    """
    arch = file.architecture
    declared = file.get(f"{arch}.attention.recurrent_layers", list[bool], None)
    heads = kv_heads(file, num_layers)
    if len(heads) == file.get(f"{arch}.block_count", int):
        heads = heads[:num_layers]
    if declared is not None:
        flags = [bool(flag) for flag in declared]
    elif 0 in heads:
        flags = [not count for count in heads]
    else:
        interval = file.get(f"{arch}.full_attention_interval", int, 0) or interval
        flags = [bool(layer % interval) for layer in range(1, num_layers + 1)]
    if len(flags) != num_layers:
        raise ModelError(
            f"{file.path}: {arch} does not define for each of {num_layers} layers whether it attends"
        )
    return flags


def sliding_layers(file: GGUFFile, num_layers: int, period: int, *, sees_all: int = -1) -> tuple[bool, ...]:
    """Return a flag for each layer: True for a layer with a sliding window.

    The file contains a flag for each layer, or a period, within which the layer with index `sees_all` sees
    all tokens. `period` is the model's default; 0 gives every layer a window.
    """
    key = f"{file.architecture}.attention.sliding_window_pattern"
    value = file.metadata.get(key)
    if not isinstance(value, np.ndarray):
        period = file.get(key, int, period)
        return tuple(not period or index % period != sees_all % period for index in range(num_layers))
    if value.dtype.kind not in "biu" or value.shape != (num_layers,):
        raise ModelError(f"{file.path}: {key} does not define the window of each of {num_layers} layers")
    return tuple(bool(is_near) for is_near in value)


def read_normal(file: GGUFFile, default: Normal) -> Normal:
    """Return the normalization of pixels from the file, or `default`."""
    prefix = f"{file.architecture}.vision.image"
    mean, std = (file.get(f"{prefix}_{key}", list[float], None) for key in ("mean", "std"))
    if mean is None or std is None:
        return default
    if len(mean) != 3 or len(std) != 3 or not all(std):
        raise ModelError(
            f"{file.path}: {prefix}_mean and image_std must be three numbers each, image_std without zeros"
        )
    return Normal((mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))


def patches_a_side(file: GGUFFile, image_size: int, patch_size: int) -> int:
    """Return the number of patches along a side of an image. Raises ModelError if they do not fit."""
    if image_size < 1 or image_size % patch_size:
        raise ModelError(
            f"{file.path}: images of {image_size} x {image_size} pixels cannot be split into patches of "
            f"{patch_size} x {patch_size}"
        )
    return image_size // patch_size


def refuse(file: GGUFFile, key: str, allowed: int, what: str) -> None:
    """Raise UnsupportedError when the file sets the number `key` to anything but `allowed`."""
    value = file.get(key, int, allowed)
    if value != allowed:
        raise UnsupportedError(
            f"{file.path}: {key} = {value}: {what} are not supported for this architecture yet"
        )


def num_tokens(file: GGUFFile) -> int:
    """Return the number of tokens: the rows of the embedding table, which get logits."""
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing")
    return file.tensors["token_embd.weight"].shape[0]
