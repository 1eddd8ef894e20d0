"""Reserving memory for a model before any of it is taken: for weights, caches and plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from chaski.errors import OptionError, OutOfMemoryError
from chaski.formats.gguf import GGUFFile
from chaski.formats.quant import QuantType
from chaski.kvcache import Cache, CacheSize, KindMemory, KVTypes, build_cache, cache_memory
from chaski.ml import Backend
from chaski.ml.backend import HOST, ByDevice, DeviceMemory, summed
from chaski.ml.graph import DType
from chaski.ml.limits import addresses_left
from chaski.ml.machine import available_memory
from chaski.model.attached import AttachedDraft
from chaski.model.encoder import EncoderProgram, encoder_memory
from chaski.model.multimodal import EncoderShape, LimitedByContext
from chaski.model.program import Program
from chaski.model.registry import Model, encoding_of
from chaski.model.weights import place_weights
from chaski.runner.engine.images import EncodedImages
from chaski.runner.loading.sizes import Sizing
from chaski.runner.speculation.own_heads import OwnHeads

__all__ = ["MemoryNeeds", "Reservation", "check_form", "kv_types"]

# Rows of logits in one batch: more make `logits` faster and cost vocab_size floats each.
_MIN_OUTPUTS = 16
_OUTPUTS_TO_DENOISE = 64  # two blocks of the usual length
# Top logits: enough for the `top_k` that people use, and for the tokens that penalties take out.
_MAX_LIKELY = 128


class MemoryNeeds(Struct, frozen=True):
    """Bytes that a model takes on each device, and bytes that are available there.

    `plans` is None where it was not computed, because the rest does not fit already. `draft` are all bytes of
    a draft model. `shared` are weights that other processes have there already, so that they take no memory.
    `in_files` are more weights, which stay in their files because no memory could hold them. `adapters` are
    LoRA adapters, `adapted` the plan of batches with them.
    """

    weights: ByDevice
    caches: Sequence[KindMemory]
    plans: ByDevice | None
    available: ByDevice
    draft: ByDevice = field(default_factory=dict)
    shared: ByDevice = field(default_factory=dict)
    in_files: ByDevice = field(default_factory=dict)
    adapters: ByDevice = field(default_factory=dict)
    adapted: ByDevice = field(default_factory=dict)

    @property
    def total(self) -> ByDevice:
        """All bytes on each device that needs any, in the order of `available`."""
        caches = [kind.num_bytes for kind in self.caches]
        shared = {device: -num_bytes for device, num_bytes in self.shared.items()}
        plans = self.plans or {}, self.adapted
        found = summed((self.weights, shared, *caches, *plans, self.draft, self.adapters))
        assert all(device in self.available for device in found if found[device]), "a device is not listed"
        return {device: found[device] for device in self.available if found.get(device)}

    @property
    def missing(self) -> Sequence[str]:
        """The devices that have too little memory for it."""
        return [device for device, num_bytes in self.total.items() if num_bytes > self.available[device]]

    def filled(self, devices: Sequence[DeviceMemory]) -> MemoryNeeds:
        """Return the needs when weights of files have filled the memory of devices that is left."""
        total, weights, in_files = self.total, dict(self.weights), dict(self.in_files)
        for each in devices:
            device = each.device
            left = self.available[device] - total.get(device, 0) - each.spare
            taken = min(each.fillable, max(0, left))
            weights[device] += taken
            in_files[device] -= taken
        return replace(self, weights=weights, in_files=in_files)

    def check(self) -> None:
        """Raise OutOfMemoryError, with a table of the needs on each device, if one has too little."""
        if not self.missing:
            return
        total = self.total
        places = ", and ".join(
            f"{total[device] / 1e9:.3f} GB on {device}, but {self.available[device] / 1e9:.3f} GB of memory "
            "are available there"
            for device in self.missing
        )
        table = "".join(self._table(device, len(total) > 1) for device in total)
        raise OutOfMemoryError(
            f"the model needs {places}; use a smaller context, fewer parallel sequences or a smaller model:"
            f"{table}"
        )

    def _table(self, device: str, is_named: bool) -> str:
        """The needs of a device, with its name above them if it is one of several."""
        rows = [("weights", self.weights), ("of them in memory already", self.shared)]
        rows += [(f"{k.layers} layers, {k.kind}: {k.cells} cells", k.num_bytes) for k in self.caches]
        rows += [("plans", self.plans or {}), ("draft model", self.draft)]
        lines = [f"\n  {part[device] / 1e9:10.3f} GB  {what}" for what, part in rows if part.get(device)]
        return "".join([f"\n  {device}:" if is_named else "", *lines])


class Reservation:
    """Places for everything that a model needs; no memory is taken before the backend loads.

    If weights and cells alone do not fit, there is no cache and no program, and `needs.check()` raises.
    """

    def __init__(
        self,
        model: Model,
        file: GGUFFile,
        backend: Backend,
        size: CacheSize | Sizing,
        types: KVTypes,
        projector: GGUFFile | None = None,
        draft: AttachedDraft | None = None,
        claimed: int = 0,
        num_outputs: int | None = None,
    ) -> None:
        """`claimed`: bytes of the host that count as unavailable.

        A `Sizing` is limited by what is available.
        """
        place_weights(model, file, backend, projector, draft)
        encoding = encoding_of(model)
        self.images: EncodedImages | None = None
        self.heads: OwnHeads | None = None
        self.sizing: Sizing | None = None
        own_type = _encoder_type(types, backend, projector or file)

        def caches_of(size: CacheSize) -> list[KindMemory]:
            model.context = size.capacity
            if isinstance(encoding, LimitedByContext):
                encoding.limit_to(size.capacity)
            kinds = [*model.layer_kinds(), *(() if draft is None else draft.layer_kinds())]
            caches = cache_memory(backend, kinds, size, types)
            if encoding is not None:
                caches += _image_memory(backend, encoding.shape, own_type, size.sequences)
            return caches

        available = {device.name: device.available_bytes for device in backend.devices()}
        available.setdefault(HOST, available_memory())
        available[HOST] = max(0, available[HOST] - claimed)
        held = backend.memory().devices
        weights = {part.device: part.weights for part in held}
        shared = {part.device: part.shared for part in held}
        in_files = {part.device: part.in_files for part in held}
        if isinstance(size, Sizing):
            left = {
                device: max(0, num_bytes - weights.get(device, 0) + shared.get(device, 0))
                for device, num_bytes in available.items()
            }
            if (addresses := addresses_left()) is not None:
                left[HOST] = min(left[HOST], addresses)
            self.sizing = size.scarce() if any(in_files.values()) else size
            size = self.sizing.choose(
                lambda size: summed(kind.num_bytes for kind in caches_of(size)), left, available
            )
        self.size = size
        caches = caches_of(size)
        kinds = [*model.layer_kinds(), *(() if draft is None else draft.layer_kinds())]
        self.needs = MemoryNeeds(weights, caches, None, available, shared=shared, in_files=in_files)
        if not self.needs.missing:
            self.cache = build_cache(backend, kinds, size, types)
            makes_text = model.config.pooling is None
            least = _MIN_OUTPUTS if model.config.is_causal else _OUTPUTS_TO_DENOISE
            self.program = Program(
                model,
                self.cache,
                backend,
                size.max_batch,
                max_outputs=max(size.sequences, num_outputs or least) if makes_text else size.max_batch,
                max_top_logits=_MAX_LIKELY if makes_text else 0,
                draft=draft,
            )
            if encoding is not None:
                self.images = EncodedImages(EncoderProgram(encoding, backend, own_type), size.sequences)
            if draft is not None:
                self.heads = _heads(draft, self.cache, backend, size)
            held = backend.memory().devices
            self.needs = replace(self.needs, plans={part.device: part.plans for part in held})
            self.needs = self.needs.filled(held)


def _heads(draft: AttachedDraft, cache: Cache, backend: Backend, size: CacheSize) -> OwnHeads:
    """Return what proposes tokens from the model's hidden states."""
    ordered = draft.config.vocab_size if draft.is_ordered else None
    return OwnHeads.of(partial(draft.program, cache, backend, size), draft.cost, ordered)


def _image_memory(backend: Backend, shape: EncoderShape, dtype: DType, parallel: int) -> list[KindMemory]:
    num_bytes = EncodedImages.bytes_for(shape, parallel)
    rows = num_bytes // (4 * shape.row_size)
    return [encoder_memory(backend, shape, dtype), KindMemory("encoded images", 1, rows, {HOST: num_bytes})]


def kv_types(name: str | None, backend: Backend, file: GGUFFile) -> KVTypes:
    """Return the types of a name; without one, float32 for models of float32 matrices.

    Their users want exact numbers. Tables of whole numbers are no matrices.
    """
    if name is not None:
        return KVTypes.parse(name)
    matrices = [info for info in file.tensors.values() if len(info.shape) > 1]
    is_exact = all(info.type in (QuantType.F32, QuantType.I32) for info in matrices)
    dtype = DType.F32 if is_exact else backend.default_kv_dtype
    return KVTypes(dtype, dtype)


def _encoder_type(types: KVTypes, backend: Backend, file: GGUFFile) -> DType:
    """Return the type of an encoder's keys and values: float32 where those of the text model are.

    Otherwise it does not depend on them: heads of encoders have sizes that quantized types do not come in,
    and are not kept.
    """
    return DType.F32 if types.keys is DType.F32 else kv_types(None, backend, file).keys


def check_form(types: KVTypes, flash: bool) -> None:
    """Raise OptionError for quantized keys and values without fused attention, which alone reads them."""
    quantized = [dtype.value for dtype in (types.keys, types.values) if dtype.is_in_blocks]
    if quantized and not flash:
        raise OptionError(
            f"keys and values of type {quantized[0]} need flash attention, which is switched off: remove "
            "OLLAMA_FLASH_ATTENTION=0 or flash_attention=False, or use f16, bf16 or f32"
        )
