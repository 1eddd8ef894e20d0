"""The settings with which llama.cpp loads a model, and the check for enough memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from chaski.chat.defaults import Defaults
from chaski.env import Environment
from chaski.errors import OptionError, OutOfMemoryError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import KVTypes
from chaski.ml.graph import DType
from chaski.ml.machine import available_memory, physical_cores
from chaski.model.pooling import Pooling, read_pooling
from chaski.names import AUTO
from chaski.runner.loading.gpus import GPUWishes
from chaski.runner.loading.reservation import check_form
from chaski.runner.loading.sizes import at_least, context_size, thread_count, usual_context

__all__ = ["LlamaSettings"]

# llama.cpp allocates whole blocks of this many tokens for each sequence, and leaves the last tokens free.
_BLOCK, _FREE = 256, 2
_UNKNOWN = 1 << 31
_BYTES = {DType.F32: 4.0, DType.F16: 2.0, DType.BF16: 2.0, DType.Q8_0: 34 / 32, DType.Q4_0: 18 / 32}


class LlamaSettings(Struct, frozen=True, kw_only=True):
    """Settings of the engine llama.cpp; `chaski.load` documents them.

    context_reason  why the context has its length, in words
    trained       context that the model was trained for; llama.cpp never gives a sequence more
    projector     the file of its encoder of images
    pooling       the way it makes vectors; None for a model of text
    """

    path: str
    context: int
    trained: int
    parallel: int
    num_batch: int
    threads: int
    types: KVTypes
    flash_attention: bool
    prefix_cache: bool
    pooling: Pooling | None
    gpus: GPUWishes
    projector: str | None = None
    context_reason: str = ""

    @classmethod
    def of(cls, file: GGUFFile, defaults: Defaults, options: Mapping[str, Any]) -> LlamaSettings:
        """Make the settings from the options of a worker, the model's defaults, and the environment. Raises
        OptionError.
        """
        environment = Environment.read()
        if options.get("backend") not in (None, AUTO, "cpu"):
            raise OptionError(f"backend = {options['backend']!r} is not a backend of the engine llama.cpp")
        if options.get("draft") is not None:
            raise OptionError(
                "the engine llama.cpp does not support draft models; load the model without draft"
            )
        trained = file.get(f"{file.architecture}.context_length", int, 0) or _UNKNOWN
        usual = defaults.loading.get("num_ctx") or environment.context  # 0 sets nothing
        flash = options.get("flash_attention")
        flash = environment.flash_attention if flash is None else flash
        types = KVTypes.parse(options.get("kv_type") or environment.kv_type or "f16")
        check_form(types, flash)
        for dtype in {types.keys, types.values} - _BYTES.keys():
            raise OptionError(
                f"the engine llama.cpp cannot store keys and values as {dtype.value}; it supports "
                f"{', '.join(known.value for known in _BYTES)}"
            )
        asked, usual_parallel = (
            options.get("parallel"),
            environment.parallel or options.get("most_parallel", 1),
        )
        projector = options.get("projector")
        usual_threads = defaults.loading.get("num_thread") or environment.threads
        return cls(
            path=os.fspath(file.path),
            context=_context(file, trained, usual, options),
            context_reason=_context_reason(options, defaults, environment),
            trained=trained,
            parallel=at_least("parallel", usual_parallel if asked is None else asked, 1),
            num_batch=at_least("num_batch", options.get("num_batch", 512), 1),
            projector=None if projector is None else os.fspath(projector),
            threads=thread_count(options.get("threads"), usual_threads) or physical_cores(),
            types=types,
            flash_attention=flash,
            prefix_cache=options.get("prompt_cache", True),
            pooling=_pooling(file),
            gpus=GPUWishes.of(
                options.get("num_gpu", defaults.loading.get("num_gpu")),
                options.get("main_gpu", defaults.loading.get("main_gpu")),
                options.get("tensor_split"),
            ),
        )

    @property
    def room(self) -> int:
        """Number of tokens that a sequence can use: the context without the free tokens at its end."""
        return max(min(self.context, self.trained - _FREE), 1)

    @property
    def longest(self) -> int:
        """The longest context that the model was made for; 0 if its file does not tell."""
        return 0 if self.trained == _UNKNOWN else self.trained

    @property
    def cells(self) -> int:
        """Number of tokens of all sequences together, as llama.cpp rounds it."""
        return -(-(self.context + _FREE) // _BLOCK) * _BLOCK * self.parallel

    def weight_bytes(self, file: GGUFFile) -> int:
        """Return the bytes of the model's weights, including its encoder."""
        encoder = os.path.getsize(self.projector) if self.projector else 0
        return encoder + sum(tensor.nbytes for tensor in file.tensors.values())

    def check_memory(self, file: GGUFFile) -> None:
        """Raise OutOfMemoryError if weights, keys and values exceed the available memory.

        The estimate assumes that every layer keeps all tokens, although some layers do not.
        """
        weights = self.weight_bytes(file)
        cache = self.cells * self._bytes_per_token(file)
        available = available_memory()
        if weights + cache > available:
            raise OutOfMemoryError(
                f"llama.cpp needs {(weights + cache) / 1e9:.3f} GB for the model, but "
                f"{available / 1e9:.3f} GB of memory are available; use a smaller context, fewer "
                f"parallel sequences or a smaller model:\n  {weights / 1e9:10.3f} GB  weights\n  "
                f"{cache / 1e9:10.3f} GB  {self.cells} tokens"
            )

    def _bytes_per_token(self, file: GGUFFile) -> float:
        """Return the bytes that a token adds to the cache; 0 if the file does not define them."""

        def number(key: str, default: int = 0) -> int:
            value = file.metadata.get(f"{file.architecture}.{key}", default)
            found = value if isinstance(value, np.ndarray) else np.array([value])
            return int(found.max(initial=0)) if found.dtype.kind in "iu" else 0

        heads = number("attention.head_count")
        size = number("embedding_length") // heads if heads else 0
        rows = number("block_count") * number("attention.head_count_kv", heads)
        keys = number("attention.key_length", size) * _BYTES[self.types.keys]
        return rows * (keys + number("attention.value_length", size) * _BYTES[self.types.values])


def _context(file: GGUFFile, trained: int, usual: int | None, options: Mapping[str, Any]) -> int:
    """Return the context: the one that is set, else the usual one or what a request needs.

    llama.cpp takes the memory of the whole context at once.
    """
    if options.get("context") is not None:
        return context_size(file.path, trained, options["context"])
    if usual is not None:
        return min(trained, at_least("num_ctx", usual, 1))
    return usual_context(trained, options.get("needed_context"))


def _context_reason(options: Mapping[str, Any], defaults: Defaults, environment: Environment) -> str:
    if options.get("context") is not None:
        return "as asked for"
    if defaults.loading.get("num_ctx"):
        return "num_ctx of the model"
    return "OLLAMA_CONTEXT_LENGTH" if environment.context is not None else ""


def _pooling(file: GGUFFile) -> Pooling | None:
    found = read_pooling(file)
    if found is Pooling.RANK:
        raise UnsupportedError(
            f"{file.path.name} ranks documents, which the engine llama.cpp does not support here; use "
            "the native engine"
        )
    return found
