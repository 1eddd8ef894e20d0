"""From a model's name or path to an `LLM`: places for all that it needs, then its weights."""

from __future__ import annotations

import logging
import os
from time import perf_counter

from chaski.env import Environment
from chaski.errors import OptionError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.kvcache import CacheSize, KVTypes
from chaski.ml import BackendOptions, open_backend
from chaski.ml.backend import Progress
from chaski.ml.graph import DType
from chaski.model.metadata import blamed_on
from chaski.model.registry import Model, build_model
from chaski.runner.engine import Engine
from chaski.runner.llm import LLM
from chaski.runner.reserve import Reservation, kv_types
from chaski.runner.slots import Policy
from chaski.runner.stored import Defaults
from chaski.store.model import find_model

__all__ = ["load"]

_log = logging.getLogger(__name__)

_DEFAULT_CONTEXT = 4096


def load(
    model: str | os.PathLike[str],
    *,
    threads: int | None = None,
    context: int | None = None,
    parallel: int | None = None,
    num_batch: int = 512,
    kv_type: str | None = None,
    flash_attention: bool | None = None,
    prompt_cache: bool = True,
    backend: str = "cpu",
    progress: Progress = lambda share: None,
) -> LLM:
    """Load a model: one of the store or a bundled one by name, or a GGUF file.

    threads       cores to compute on; all physical ones by default
    context       tokens that a sequence may hold; the model's own, at most 4096, by default
    parallel      sequences that are computed at the same time, each with its own context
    num_batch     tokens that are computed at once; prompts are computed in chunks of this size
    kv_type       element type of keys and values: f32, f16, bf16, q8_0 or q4_0, or two as keys:values; f16 by
                  default, f32 for an f32 model
    flash_attention
                  whether attention takes the history chunk by chunk (the default); if not, it computes all
                  scores of a token first, which q8_0 and q4_0 cannot have
    prompt_cache  whether a prompt takes over what was computed for an earlier one that begins like it
    backend       cpu, or reference: the definition of every operation in NumPy
    progress      called with the loaded share, from 0 to 1

    What is not given comes from the model's own parameters, then from the environment, see `chaski.env`.
    All memory is reserved here. Raises ModelNotFoundError, StoreError, GGUFError, UnsupportedError,
    ModelError, OutOfMemoryError or OptionError.
    """
    started = perf_counter()
    environment = Environment.read()
    found = find_model(model)
    defaults = Defaults.of(found)
    file = open_gguf(found.path)
    network = build_model(file)
    context = _context(network, file, context, defaults.loading.get("num_ctx", environment.context))
    parallel = _at_least("parallel", environment.parallel or 1 if parallel is None else parallel, 1)
    num_batch = min(_at_least("num_batch", num_batch, parallel), parallel * context)
    own_threads = defaults.loading.get("num_thread") or environment.threads
    threads = own_threads if threads is None else _at_least("threads", threads, 1)
    flash = environment.flash_attention if flash_attention is None else flash_attention
    opened = open_backend(backend, BackendOptions(threads, environment.isa, flash))
    try:
        types = kv_types(environment.kv_type if kv_type is None else kv_type, opened, file)
        _check_form(types, flash)
        with blamed_on(file):
            reserved = Reservation(network, file, opened, CacheSize(parallel, context, num_batch), types)
        reserved.needs.check()
        opened.load(progress)
    except BaseException:
        opened.close()
        raise
    engine = Engine(
        reserved.program, reserved.cache, parallel, _policy(environment) if prompt_cache else None
    )
    return LLM(file, opened, engine, context, network.config, perf_counter() - started, defaults)


def _policy(environment: Environment) -> Policy:
    if environment.multi_user is None:
        return Policy.SMALLER_LOSS
    return Policy.MULTI_USER if environment.multi_user else Policy.SINGLE_USER


def _context(model: Model, file: GGUFFile, context: int | None, default: int | None) -> int:
    trained = model.config.context_length
    if context is None:
        return min(trained, _at_least("num_ctx", default or _DEFAULT_CONTEXT, 1))
    if context > trained:
        _log.warning(
            "%s was made for %d tokens: beyond them a context of %d gives poor text",
            file.path.name,
            trained,
            context,
        )
    return _at_least("context", context, 1)


def _check_form(types: KVTypes, flash: bool) -> None:
    """Only the fused form reads quantized keys and values."""
    quantized = [dtype.value for dtype in (types.keys, types.values) if dtype in (DType.Q8_0, DType.Q4_0)]
    if quantized and not flash:
        raise OptionError(
            f"keys and values of type {quantized[0]} need flash attention, which is switched off: remove "
            "OLLAMA_FLASH_ATTENTION=0 or flash_attention=False, or use f16, bf16 or f32"
        )


def _at_least(name: str, value: int, smallest: int) -> int:
    if not isinstance(value, int) or value < smallest:
        raise OptionError(f"{name} = {value!r} must be a whole number of at least {smallest}")
    return value
