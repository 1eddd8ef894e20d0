"""Loading a model by its name or path: its memory is reserved, then its weights are read."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Never

from chaski.chat.defaults import Defaults, stored_adapters
from chaski.chat.several import ProgressOption, check_progress, progress_of
from chaski.env import Environment
from chaski.errors import ChaskiError, OptionError, OutOfMemoryError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.guide import guide_of
from chaski.ml.backend import HOST, ProgressCallback
from chaski.ml.limits import address_space_note
from chaski.model.pooling import pooling_number
from chaski.model.registry import text_encoder_of, vision_of
from chaski.names import NATIVE, check_engine
from chaski.runner.adapters.adapter_calls import AdapterFiles, adapter_files
from chaski.runner.adapters.adapter_set import AdapterSet
from chaski.runner.engine.engine import Engine
from chaski.runner.generation.sequence_builder import LoadedBits, LoadedModel
from chaski.runner.keywords import check_load_options, load_options, plain
from chaski.runner.llm import LLM
from chaski.runner.loading.devices import reserve
from chaski.runner.loading.engine_choice import (
    EXTRA,
    choose_engine,
    is_installed,
    native_gap,
    projector_gap,
)
from chaski.runner.loading.files import OpenedModel, found_projector
from chaski.runner.loading.parts import ModelParts, PartOptions, ReservedModel
from chaski.runner.loading.prefix import open_tiers
from chaski.runner.loading.pulling import find_or_pull
from chaski.runner.loading.sizes import SizeWishes, Sizing
from chaski.runner.prefix.slots import Policy
from chaski.runner.prefix.tiers import PrefixTiers
from chaski.same_bits import UsualFloats
from chaski.store.model import StoredModel

if TYPE_CHECKING:
    from chaski.text.tokenizer import Tokenizer

__all__ = ["load", "load_parts"]


@contextmanager
def _naming_limits() -> Iterator[None]:
    """Turn a lack of memory or threads into OutOfMemoryError with the limits of this process."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_thread = "new thread" in str(error)
        if not is_thread and not isinstance(error, MemoryError):
            raise
        reason = "no thread could be started" if is_thread else "memory ended"
        raise OutOfMemoryError(f"{reason} while the model was loaded{address_space_note()}") from None


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pause the garbage collector: plans are many objects and no garbage, and a collection takes 17 ms."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


@_naming_limits()
@UsualFloats()
def load(
    model: str | os.PathLike[str] | OpenedModel,
    *,
    projector: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    context: int | None = None,
    needed_context: int | None = None,
    parallel: int | None = None,
    most_parallel: int = 1,
    claimed_memory: int = 0,
    num_batch: int = 512,
    kv_type: str | None = None,
    flash_attention: bool | None = None,
    prompt_cache: bool | str = True,
    backend: str | None = None,
    engine: str | None = None,
    draft: str | os.PathLike[str] | None = None,
    adapters: AdapterFiles | None = None,
    num_gpu: int | None = None,
    main_gpu: int | None = None,
    tensor_split: Sequence[float] | None = None,
    n_cpu_moe: int | None = None,
    cpu_moe: bool | None = None,
    override_tensor: str | Sequence[str] | None = None,
    gpu_experts: int | None = None,
    expert_memory: int | None = None,
    progress: ProgressOption = False,
    **unknown: Never,
) -> LLM:
    """Load a model: one of the store or a bundled one by name, a GGUF file, or one that is open already.

    A name that begins with `hf.co/` is pulled first where it is not in the store.

    projector     a GGUF file with the encoder of images (mmproj), where the model does not bring its own
    threads       cores to compute on; all physical ones by default
    context       tokens that a sequence may hold; by default as many as the model was trained for, as far
                  as memory allows: see docs/server.md
    needed_context  tokens that the default must be enough for; 4,096 where the model was trained for as many
    parallel      sequences that are computed at the same time, each with its own context; 1 by default, or
                  for a model whose tokens all see each other as many as fit into 2,048 tokens
    most_parallel  sequences where `parallel` is None and memory suffices
    claimed_memory  bytes of this machine's memory that others will take, and that count as unavailable
    num_batch     tokens that are computed at once; prompts are computed in chunks of this size. A model
                  whose tokens all see each other computes 512, or a whole context, unless another is given
    kv_type       element type of keys and values: f32, f16, bf16, i16 (integers with a scale for each head of
                  a token), q8_0, q4_0 or q3_0, or two as keys:values; i16 by default, f32 for an f32 model
    flash_attention  attention takes the history chunk by chunk (the default), or computes all scores first
    prompt_cache  a prompt takes over what was computed for an earlier one that begins like it, also before
                  the model was loaded; `"memory"` keeps nothing on disk, False takes over nothing
    draft         a small model of the same vocabulary, found as `model` is: it proposes tokens, which this
                  one then checks in one batch; a model of the store may bring its own
    adapters      GGUF files of LoRA adapters that requests may name: {name: path}, or a list of paths, whose
                  names are those of the files without suffix
    backend       auto: an NVIDIA GPU where there is one, else the processor; cpu; cuda: GPUs; sharded: the
                  nodes that CHASKI_NODES names, together; or reference: the definition of every operation in
                  NumPy
    num_gpu       number of trailing layers on GPUs, counting the output as one; as many as fit by default,
                  and 0 for none
    main_gpu      the GPU for a model that fits on one GPU; the one with the most free memory by
                  default
    tensor_split  how much of the model each GPU takes; as much as its free memory allows by default
    n_cpu_moe     number of leading layers whose experts are on the processor, while the rest of these layers
                  is on a GPU; as few as the GPU's memory allows by default
    cpu_moe       the experts of all layers are on the processor
    override_tensor  devices of tensors by their names, in llama.cpp's form: PATTERN=DEVICE, where DEVICE is
                  CPU or CUDA0 and so on, several separated by commas or in a list
    gpu_experts   number of experts of each layer that a GPU has, those that tokens choose most, while the
                  processor computes the others of the layers of `n_cpu_moe`, or else of all layers.
                  By default what is predicted to be faster, and 0 for none
    expert_memory  the most bytes of this machine's memory for experts. The others are read from the file when
                  tokens choose them. All experts by default, or what the rest of a large model leaves free
    engine        native, or None for the one that has the architecture; llama.cpp computes in workers only
    progress      True draws a bar, also of a pull; a function is called with the loaded share, from 0 to 1

    Options that are not given come from the model's own parameters, then from the environment, see
    `chaski.env`. All memory is reserved here. Raises ModelNotFoundError, StoreError, GGUFError,
    UnsupportedError, ModelError, AdapterError, OutOfMemoryError or OptionError.
    """
    from chaski.text.tokenizer import check_tokenizer

    started = perf_counter()
    check_load_options(unknown)
    check_progress(progress)
    options = load_options(
        projector=projector,
        threads=threads,
        context=context,
        parallel=parallel,
        wishes=SizeWishes(plain(needed_context), plain(most_parallel), plain(claimed_memory)),
        num_batch=num_batch,
        kv_type=kv_type,
        flash_attention=flash_attention,
        draft=draft,
        num_gpu=num_gpu,
        main_gpu=main_gpu,
        tensor_split=tensor_split,
        n_cpu_moe=n_cpu_moe,
        cpu_moe=cpu_moe,
        override_tensor=override_tensor,
        gpu_experts=gpu_experts,
        expert_memory=expert_memory,
    )
    prompt_cache = plain(prompt_cache)
    found = model if isinstance(model, OpenedModel) else find_or_pull(model, progress is True)
    opened = found if isinstance(found, OpenedModel) else OpenedModel.of(found)
    _require_native(opened, check_engine(engine) or opened.defaults.engine, projector)
    check_tokenizer(opened.file)
    parts = ModelParts.of(opened, PartOptions(**options))
    if opened.found.adapters and pooling_number(opened.file):
        raise UnsupportedError(
            f"{opened.file.path}: adapters of a model that makes vectors are not supported"
        )
    files = stored_adapters(opened.found) | adapter_files(adapters)
    with progress_of(progress, f"loading {opened.defaults.name or opened.file.path.name}") as tell:
        return load_parts(
            parts, opened.defaults, backend, prompt_cache, tell, started, files, opened.tokenizer
        )


@_naming_limits()
@UsualFloats()
def load_parts(
    parts: ModelParts,
    defaults: Defaults,
    backend: str | None = None,
    prompt_cache: bool | str = True,
    progress: ProgressCallback = lambda share: None,
    started: float | None = None,
    adapters: Mapping[str, str] | None = None,
    tokenizer: Tokenizer | None = None,
) -> LLM:
    """Load a model whose parts are known, as `load` does; it began at `started` of `perf_counter`, or now.

    Without a `tokenizer` the first text reads that of the file.
    """
    started = perf_counter() if started is None else started
    _check_prefix_cache(prompt_cache)
    with _without_collections():
        reserved = reserve(parts, backend)
    policy = _policy(Environment.read()) if prompt_cache else None
    description = defaults.name or str(parts.file.path)
    computing = _read_weights(reserved, parts, policy, progress, prompt_cache is True, description)
    model = _as_llm(reserved, parts, computing, defaults, perf_counter() - started, tokenizer)
    with ExitStack() as undo:
        undo.callback(model.close)
        for name, path in (adapters or {}).items():
            model.load_adapter(name, path)
        undo.pop_all()
    return model


def _read_weights(
    reserved: ReservedModel,
    parts: ModelParts,
    policy: Policy | None,
    progress: ProgressCallback,
    is_stored: bool,
    description: str,
) -> Engine:
    """Read the weights -> an engine. Releases everything if memory is missing or reading fails."""
    with ExitStack() as undo:
        undo.callback(reserved.close)
        reserved.check()
        proposing = None if reserved.draft is None else reserved.draft.load(lambda share: None)
        reserved.backend.load(progress)
        if parts.encoder is not None:
            parts.encoder.close()
        places = reserved.places
        draft = proposing or places.heads
        tiers = None if policy is None else _tiers(reserved, parts, is_stored, description)
        engine = Engine(
            places.program, places.cache, reserved.size.sequences, policy, places.images, draft, tiers
        )
        undo.pop_all()
    return engine


def _check_prefix_cache(prompt_cache: bool | str) -> None:
    """Raise OptionError for what `load` does not take."""
    if prompt_cache not in (True, False, "memory"):
        raise OptionError(f"prompt_cache = {prompt_cache!r} must be True, False or 'memory'")


def _tiers(
    reserved: ReservedModel, parts: ModelParts, is_stored: bool, description: str
) -> PrefixTiers | None:
    """Return where prefixes are kept beyond the cells, for models that make text token by token."""
    config = parts.network.config
    if config.pooling is not None or not config.is_causal:
        return None
    places = reserved.places
    attached = None if parts.attached is None else parts.attached.file
    files = [file for file in (parts.file, parts.encoder, attached) if file is not None]
    # Memory of keys and values that is not taken yet is not free.
    left = reserved.needs.available[HOST] - reserved.needs.total.get(HOST, 0)
    return open_tiers(
        left,
        places.program,
        places.cache.leaves,
        reserved.backend,
        files,
        not parts.flash_attention,
        description,
        is_stored,
    )


def _as_llm(
    reserved: ReservedModel,
    parts: ModelParts,
    computing: Engine,
    defaults: Defaults,
    seconds: float,
    tokenizer: Tokenizer | None,
) -> LLM:
    adapters = AdapterSet(
        parts.file.architecture,
        parts.network,
        reserved.places.program.adapted,
        Environment.read().adapters_memory,
    )
    model = LoadedModel(
        file=parts.file,
        config=parts.network.config,
        context=reserved.size.capacity,
        context_reason=reserved.context_reason,
        max_context=parts.max_context,
        bits=LoadedBits(
            reserved.backend.rule,
            f"{reserved.types.keys.value}:{reserved.types.values.value}",
            parts.flash_attention,
        ),
        grows=isinstance(parts.size, Sizing) and reserved.backend.name == "cpu",
        load_seconds=seconds,
        defaults=defaults,
        vision=vision_of(parts.network),
        text_encoder=text_encoder_of(parts.network),
        adapters=adapters,
        tokenizer=tokenizer,
    )
    llm = LLM(model, reserved.backend, computing, reserved.draft)
    if (guide := guide_of(parts.file, _open_encoder)) is not None:
        llm.prompts.steering = guide.steered
        llm.closing.callback(guide.close)
    return llm


def _open_encoder(file: GGUFFile) -> LLM:
    """Load the encoder that a guide's file contains."""
    opened = OpenedModel(StoredModel(None, file.path), Defaults(), file)
    return load(opened, threads=1, parallel=1, prompt_cache=False, backend="cpu")


def _require_native(
    opened: OpenedModel, requested: str | None, projector: str | os.PathLike[str] | None
) -> None:
    file = opened.file
    gap: ChaskiError | None
    if choose_engine(file, requested, text=False) != NATIVE:
        gap = native_gap(file) or UnsupportedError(f"{file.path}: the engine llama.cpp is asked for")
    elif requested is None and projector is not None:
        gap = projector_gap(file, found_projector(projector))
    else:
        return
    if gap is not None:
        way = "in a separate process: use chaski.Worker, `chaski run` or `chaski serve`"
        way = way if is_installed() else f"{EXTRA} adds it as a second engine"
        raise type(gap)(f"{gap}; llama.cpp may be able to compute this file, {way}")


def _policy(environment: Environment) -> Policy:
    if environment.multi_user is None:
        return Policy.SMALLER_LOSS
    return Policy.MULTI_USER if environment.multi_user else Policy.SINGLE_USER
