"""Loading a model by its name or path: its memory is reserved, then its weights are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter

from chaski.env import Environment
from chaski.errors import TokenizerError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import CacheSize, KVTypes
from chaski.ml import BackendOptions, CPUOptions, Options, open_backend
from chaski.ml.backend import Backend, ProgressCallback
from chaski.model.metadata import blamed_on
from chaski.model.registry import Model, build_model, vision_of
from chaski.names import NATIVE, check_engine
from chaski.runner.engine.engine import Engine
from chaski.runner.llm import LLM
from chaski.runner.loading.engine_choice import choose_engine, native_gap
from chaski.runner.loading.files import OpenedModel
from chaski.runner.loading.pulling import find_or_pull
from chaski.runner.loading.reservation import Reservation, check_form, kv_types
from chaski.runner.loading.sizes import cache_size, context_size, thread_count
from chaski.runner.prefix.slots import Policy
from chaski.runner.speculation.draft_resources import DraftResources

__all__ = ["load"]


def load(
    model: str | os.PathLike[str] | OpenedModel,
    *,
    projector: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    context: int | None = None,
    parallel: int | None = None,
    num_batch: int = 512,
    kv_type: str | None = None,
    flash_attention: bool | None = None,
    prompt_cache: bool = True,
    backend: str = "cpu",
    engine: str | None = None,
    draft: str | os.PathLike[str] | None = None,
    progress: ProgressCallback = lambda share: None,
) -> LLM:
    """Load a model: one of the store or a bundled one by name, a GGUF file, or one that is open already.

    A name that begins with `hf.co/` is pulled first where it is not in the store.

    projector     a GGUF file with the encoder of images (mmproj), where the model does not bring its own
    threads       cores to compute on; all physical ones by default
    context       tokens that a sequence may hold; the model's own, at most 4096, by default
    parallel      sequences that are computed at the same time, each with its own context
    num_batch     tokens that are computed at once; prompts are computed in chunks of this size
    kv_type       element type of keys and values: f32, f16, bf16, i16 (integers with a scale for each head of
                  a token), q8_0 or q4_0, or two as keys:values; i16 by default, f32 for an f32 model
    flash_attention  attention takes the history chunk by chunk (the default), or computes all scores first
    prompt_cache  a prompt takes over what was computed for an earlier one that begins like it
    draft         a small model of the same vocabulary, found as `model` is: it proposes tokens, which this
                  one then checks in one batch; a model of the store may bring its own
    backend       cpu, or reference: the definition of every operation in NumPy
    engine        native, or None for whoever has the architecture; llama.cpp computes in workers only
    progress      called with the loaded share, from 0 to 1

    What is not given comes from the model's own parameters, then from the environment, see `chaski.env`.
    All memory is reserved here. Raises ModelNotFoundError, StoreError, GGUFError, UnsupportedError,
    ModelError, OutOfMemoryError or OptionError.
    """
    started = perf_counter()
    environment = Environment.read()
    model = model if isinstance(model, OpenedModel) else OpenedModel.of(find_or_pull(model))
    found, defaults, file = model.found, model.defaults, model.file
    draft = found.draft if draft is None else draft
    encoder = model.open_projector(projector)
    _require_native(file, check_engine(engine) or defaults.engine)
    _check_tokenizer(file)
    network = build_model(file, encoder)
    usual = defaults.loading.get("num_ctx", environment.context)
    context = context_size(found.path, network.config.context_length, context, usual)
    size = cache_size(environment.parallel or 1 if parallel is None else parallel, context, num_batch)
    threads = thread_count(threads, defaults.loading.get("num_thread") or environment.threads)
    flash = environment.flash_attention if flash_attention is None else flash_attention
    options = BackendOptions(flash), CPUOptions(threads, environment.isa)
    kv_type = environment.kv_type if kv_type is None else kv_type
    policy = _policy(environment) if prompt_cache else None
    parts = _Parts(network, file, encoder, size, kv_type, flash, draft)
    opened, computing, small = parts.load(backend, options, policy, progress)
    seconds, vision = perf_counter() - started, vision_of(network)
    return LLM(file, opened, computing, context, network.config, seconds, defaults, vision, small)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a model that is loaded: its network, its files, its cache and its draft model."""

    network: Model
    file: GGUFFile
    encoder: GGUFFile | None
    size: CacheSize
    kv_type: str | None
    flash_attention: bool
    draft: str | os.PathLike[str] | None

    def load(
        self, backend: str, options: Sequence[Options], policy: Policy | None, progress: ProgressCallback
    ) -> tuple[Backend, Engine, DraftResources | None]:
        """Reserve memory for all of it, and read the weights. Releases everything where that fails."""
        with ExitStack() as undo:
            opened = open_backend(backend, *options)
            undo.callback(opened.close)
            types = kv_types(self.kv_type, opened, self.file)
            check_form(types, self.flash_attention)
            small: DraftResources | None = None
            if self.draft is not None:
                vocab_size = self.network.config.vocab_size
                small = DraftResources(self.draft, self.file, vocab_size, opened, self.size, self.kv_type)
                undo.callback(small.close)
            reserved = _reserve(self.network, self.file, opened, self.size, types, self.encoder, small)
            proposing = None if small is None else small.load(lambda share: None)
            opened.load(progress)
            if self.encoder is not None:
                self.encoder.close()
            undo.pop_all()
        parallel = self.size.sequences
        engine = Engine(reserved.program, reserved.cache, parallel, policy, reserved.images, proposing)
        return opened, engine, small


def _reserve(
    network: Model,
    file: GGUFFile,
    backend: Backend,
    size: CacheSize,
    types: KVTypes,
    encoder: GGUFFile | None,
    draft: DraftResources | None,
) -> Reservation:
    """Places for all of the model. Raises OutOfMemoryError where it and its draft model do not fit."""
    with blamed_on(file):
        reserved = Reservation(network, file, backend, size, types, encoder)
    needs = reserved.needs if draft is None else replace(reserved.needs, draft=draft.num_bytes)
    needs.check()
    if draft is not None and not reserved.cache.can_step_back:
        raise UnsupportedError(f"{file.path.name} cannot take back rejected tokens: load it without a draft")
    return reserved


def _require_native(file: GGUFFile, wish: str | None) -> None:
    if choose_engine(file, wish, text=False) == NATIVE:
        return
    gap = native_gap(file) or UnsupportedError(f"{file.path}: the engine llama.cpp is asked for")
    raise type(gap)(
        f"{gap}; llama.cpp may be able to compute this file, in a process of its own: use chaski.Worker, "
        "`chaski run` or `chaski serve`"
    )


def _check_tokenizer(file: GGUFFile) -> None:
    """Refuse a file whose texts nobody can read, before its weights are read."""
    from chaski.text.tokenizer import check_tokenizer

    try:
        check_tokenizer(file.metadata)
    except TokenizerError as error:
        raise TokenizerError(f"{file.path}: {error}") from None


def _policy(environment: Environment) -> Policy:
    if environment.multi_user is None:
        return Policy.SMALLER_LOSS
    return Policy.MULTI_USER if environment.multi_user else Policy.SINGLE_USER
