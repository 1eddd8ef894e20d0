"""The parts of a model that is loaded, and the places that are reserved for them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from chaski.env import Environment
from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import CacheSize
from chaski.ml import BackendOptions, CPUOptions, GPUOptions, NodesOptions, Options, open_backend
from chaski.ml.backend import Backend, summed
from chaski.model.attached import AttachedDraft, Target
from chaski.model.drafts import attach_draft, is_attached
from chaski.model.file_dialects import open_model
from chaski.model.metadata import blamed_on
from chaski.model.own_blocks import own_blocks
from chaski.model.registry import Model, build_model, max_context_of
from chaski.runner.adapters.adapter_set import AdapterSet
from chaski.runner.loading.files import OpenedModel
from chaski.runner.loading.gpus import GPUWishes
from chaski.runner.loading.reservation import MemoryNeeds, Reservation, check_form, kv_types
from chaski.runner.loading.sizes import (
    USUAL_BATCH,
    WHOLE,
    SizeWishes,
    Sizing,
    at_least,
    cache_size,
    context_size,
    thread_count,
    usual_context,
    usual_texts,
)
from chaski.runner.speculation.draft_resources import DraftResources
from chaski.store.model import find_model

__all__ = ["ModelParts", "PartOptions", "ReservedModel"]


class PartOptions(Struct, frozen=True, kw_only=True):
    """Options of `chaski.load` on parts, sizes and devices. None: the model or the environment decides.

    num_outputs: the largest number of rows of logits in a batch, unless there are more sequences.
    """

    projector: str | os.PathLike[str] | None = None
    threads: int | None = None
    context: int | None = None
    parallel: int | None = None
    wishes: SizeWishes = SizeWishes()
    num_batch: int = USUAL_BATCH
    num_outputs: int | None = None
    kv_type: str | None = None
    flash_attention: bool | None = None
    draft: str | os.PathLike[str] | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    tensor_split: Sequence[float] | None = None
    n_cpu_moe: int | None = None
    cpu_moe: bool | None = None
    override_tensor: str | Sequence[str] | None = None
    gpu_experts: int | None = None
    expert_memory: int | None = None


class ModelParts(Struct, frozen=True):
    """Network, files, sizes and draft, and the settings for backends. See `chaski.load`.

    `draft` is the file of a draft model, `attached` a draft that is not a complete model. `size` is a
    `Sizing` where memory decides, and `size_reason` names in words what decided otherwise. `claimed` are
    bytes of the host's memory that other models have reserved and will take later.
    """

    network: Model
    file: GGUFFile
    encoder: GGUFFile | None
    size: CacheSize | Sizing
    size_reason: str
    max_context: int
    claimed: int
    num_outputs: int | None
    kv_type: str | None
    flash_attention: bool
    options: tuple[Options, ...]
    gpus: GPUWishes
    draft: GGUFFile | None
    attached: AttachedDraft | None

    @classmethod
    def of(cls, model: OpenedModel, asked: PartOptions) -> ModelParts:
        """Fill in missing options from the model's own parameters and the environment."""
        environment, loading = Environment.read(), model.defaults.loading
        encoder = model.open_projector(asked.projector)
        network = build_model(model.file, encoder)
        draft, attached = _drafts(model, network, asked.draft)
        flash = environment.flash_attention if asked.flash_attention is None else asked.flash_attention
        threads = thread_count(asked.threads, loading.get("num_thread") or environment.threads)
        size, reason = _size(model, network, asked, flash)
        overrides = loading.get("override_tensor") if asked.override_tensor is None else asked.override_tensor
        gpus = GPUWishes.of(
            loading.get("num_gpu") if asked.num_gpu is None else asked.num_gpu,
            loading.get("main_gpu") if asked.main_gpu is None else asked.main_gpu,
            asked.tensor_split,
            *_experts(asked, loading),
            overrides,
            asked.gpu_experts,
        )
        if overrides is not None:  # those of the environment are for all models
            gpus.check_names(model.file.tensors)
        return cls(
            network=network,
            file=model.file,
            encoder=encoder,
            size=size,
            size_reason=reason,
            max_context=_max_context(network),
            claimed=asked.wishes.claimed_memory,
            num_outputs=asked.num_outputs,
            kv_type=environment.kv_type if asked.kv_type is None else asked.kv_type,
            flash_attention=flash,
            options=(
                BackendOptions(flash),
                CPUOptions(
                    threads,
                    environment.isa,
                    environment.variants,
                    grows=isinstance(size, Sizing),
                    expert_memory=_expert_memory(asked.expert_memory, environment),
                ),
                _nodes_options(environment),
            ),
            gpus=gpus,
            draft=draft,
            attached=attached,
        )


def _experts(asked: PartOptions, loading: Mapping[str, Any]) -> tuple[int | None, bool | None]:
    """Return `n_cpu_moe` and `cpu_moe`: those that are asked for, else the model's own."""
    if asked.n_cpu_moe is not None or asked.cpu_moe is not None:
        return asked.n_cpu_moe, asked.cpu_moe
    return loading.get("n_cpu_moe"), loading.get("cpu_moe")


def _drafts(
    model: OpenedModel, network: Model, asked: str | os.PathLike[str] | None
) -> tuple[GGUFFile | None, AttachedDraft | None]:
    """Return the file of a draft model, or the draft that is attached to the network; at most one of them.

    Without either, the blocks of the model's own file are the draft.
    """
    draft = model.found.draft if asked is None else asked
    if draft is None:
        with blamed_on(model.file):
            return None, own_blocks(network, model.file)
    if not network.config.is_causal:
        raise UnsupportedError(
            f"{model.found.path}: a draft cannot propose tokens for a model whose tokens all see each other, "
            "such as one that denoises; load it without a draft"
        )
    file = open_model(find_model(draft).path)
    return (None, attach_draft(file, Target(network, model.file))) if is_attached(file) else (file, None)


def _size(
    model: OpenedModel, network: Model, asked: PartOptions, flash: bool
) -> tuple[CacheSize | Sizing, str]:
    """Return the size, or the limits of a size that memory decides about, and the reason in words."""
    config, trained, wishes = network.config, _max_context(network), asked.wishes
    parallel = Environment.read().parallel if asked.parallel is None else asked.parallel
    if parallel is not None:
        at_least("parallel", parallel, 1)
    context, reason = _set_context(model, network, asked)
    if context is None and config.is_causal and flash:
        counts = _halves(wishes.most_parallel) if parallel is None else (parallel,)
        return Sizing.of(trained, wishes.needed_context, counts, asked.num_batch), ""
    if context is None:
        # All of it takes memory at once: batches of whole texts, or the scores of all earlier tokens.
        context = usual_context(trained, wishes.needed_context)
        reason = "" if context < trained else WHOLE
    if parallel is None and wishes.most_parallel > 1:
        parallel = wishes.most_parallel
    num_batch = asked.num_batch
    if not config.is_causal:
        if num_batch == USUAL_BATCH:
            num_batch = max(num_batch, context)  # a text is one group, and groups are never cut
        parallel = usual_texts(context) if parallel is None else parallel
    return cache_size(1 if parallel is None else parallel, context, num_batch), reason


def _max_context(network: Model) -> int:
    """Return the longest context that a model was made for."""
    trained, most = network.config.context_length, max_context_of(network)
    return trained if most is None else min(trained, most)


def _set_context(model: OpenedModel, network: Model, asked: PartOptions) -> tuple[int | None, str]:
    """Return the context that is set, or None, and a text that names the setting."""
    if asked.context is not None:
        trained, most = network.config.context_length, max_context_of(network)
        return context_size(model.found.path, trained, asked.context, most), "as asked for"
    of_model, of_environment = model.defaults.loading.get("num_ctx"), Environment.read().context
    usual = of_model or of_environment  # 0 sets nothing
    if usual is None:
        return None, ""
    reason = "num_ctx of the model" if of_model else "OLLAMA_CONTEXT_LENGTH"
    return min(network.config.context_length, at_least("num_ctx", usual, 1)), reason


def _halves(most: int) -> Sequence[int]:
    """Return numbers of sequences to choose from: the most, its half, and so on to 1."""
    return [most >> shift for shift in range(max(1, most).bit_length())]


def _expert_memory(asked: int | None, environment: Environment) -> int | None:
    return environment.expert_memory if asked is None else at_least("expert_memory", asked, 0)


def _nodes_options(environment: Environment) -> NodesOptions:
    shares = tuple(share for _, _, share in environment.nodes if share is not None)
    return NodesOptions(
        addresses=tuple((host, port) for host, port, _ in environment.nodes),
        split=environment.split,
        shares=shares or None,
        key_file=environment.nodes_key,
    )


class ReservedModel:
    """A backend that has places for all parts of a model, and for its draft model on a sibling.

    They take no memory before they load, and `check` reports whether there is enough.
    """

    def __init__(self, parts: ModelParts, backend: str, *options: Options) -> None:
        """`backend`: its name. `options`: its settings in addition to the options of the parts."""
        self._parts = parts
        self.place = next((each for each in options if isinstance(each, GPUOptions)), None)
        with ExitStack() as undo:
            self.backend: Backend = open_backend(backend, *parts.options, *options)
            undo.callback(self.backend.close)
            self.types = types = kv_types(parts.kv_type, self.backend, parts.file)
            check_form(types, parts.flash_attention)
            with blamed_on(parts.file):
                self.places = Reservation(
                    parts.network,
                    parts.file,
                    self.backend,
                    parts.size,
                    types,
                    parts.encoder,
                    parts.attached,
                    parts.claimed,
                    parts.num_outputs,
                )
            self.size = self.places.size
            self.draft: DraftResources | None = None
            if parts.draft is not None:
                vocab_size = parts.network.config.vocab_size
                self.draft = DraftResources(
                    parts.draft, parts.file, vocab_size, self.backend, self.size, parts.kv_type
                )
                undo.callback(self.draft.close)
            self._undo = undo.pop_all()

    @property
    def context_reason(self) -> str:
        """Why the context has its length, in words."""
        parts = self._parts
        if self.places.sizing is None:
            return parts.size_reason
        return self.places.sizing.reason(self.size, parts.network.config.context_length)

    @property
    def needs(self) -> MemoryNeeds:
        """The memory that all parts take."""
        needs = self.places.needs
        return needs if self.draft is None else replace(needs, draft=self.draft.num_bytes)

    def needs_with(self, adapters: Sequence[Path]) -> MemoryNeeds:
        """Return the memory that all parts take with these LoRA adapters, files of them.

        Raises what reading an adapter does.
        """
        needs, places = self.needs, self.places
        if not adapters or needs.plans is None:
            return needs
        adapter_set = AdapterSet(self._parts.file.architecture, self._parts.network, places.program.adapted)
        num_bytes = summed(map(adapter_set.size, adapters))
        adapted = {
            each.device: each.plans - needs.plans[each.device] for each in self.backend.memory().devices
        }
        return replace(needs, adapters=num_bytes, adapted=adapted)

    def check(self) -> None:
        """Raise OutOfMemoryError where a device has too little memory."""
        self.needs.check()

    def close(self) -> None:
        """Release everything."""
        self._undo.close()
