"""Reserving memory for a model before any of it is taken: for weights, caches and plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chaski.errors import OptionError, OutOfMemoryError
from chaski.formats.gguf import GGUFFile
from chaski.formats.quant import QuantType
from chaski.kvcache import CacheSize, KindMemory, KVTypes, build_cache, cache_memory
from chaski.ml import Backend
from chaski.ml.graph import DType
from chaski.model.encoder import EncoderProgram, encoder_memory
from chaski.model.multimodal import EncoderShape
from chaski.model.program import Program
from chaski.model.registry import Model, vision_of
from chaski.model.weights import place_weights
from chaski.runner.engine.images import EncodedImages

__all__ = ["MemoryNeeds", "Reservation", "check_form", "kv_types"]

# Rows of logits in one batch: more make `logits` faster and cost vocab_size floats each.
_MIN_OUTPUTS = 16
# Top logits: enough for the `top_k` that people use, and for the tokens that penalties take out.
_MAX_LIKELY = 128


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes that a model takes, and bytes that are available for it.

    `plans` is None where it was not computed, because the rest does not fit already. `draft` are all bytes of
    a draft model.
    """

    weights: int
    caches: Sequence[KindMemory]
    plans: int | None
    available: int
    draft: int = 0

    @property
    def total(self) -> int:
        return self.weights + sum(kind.num_bytes for kind in self.caches) + (self.plans or 0) + self.draft

    def check(self) -> None:
        """Raise OutOfMemoryError, with a table of what is needed, where that is too much."""
        if self.total <= self.available:
            return
        rows = [("weights", self.weights)]
        rows += [(f"{k.layers} layers, {k.kind}: {k.cells} cells", k.num_bytes) for k in self.caches]
        if self.plans is not None:
            rows.append(("plans", self.plans))
        if self.draft:
            rows.append(("draft model", self.draft))
        table = "".join(f"\n  {num_bytes / 1e9:10.3f} GB  {what}" for what, num_bytes in rows)
        raise OutOfMemoryError(
            f"the model needs {self.total / 1e9:.3f} GB, but {self.available / 1e9:.3f} GB of memory are "
            f"available; use a smaller context, fewer parallel sequences or a smaller model:{table}"
        )


class Reservation:
    """Places for everything that a model needs; no memory is taken before the backend loads.

    There is no cache and no program where weights and cells alone do not fit: `needs.check()` says so.
    """

    def __init__(
        self,
        model: Model,
        file: GGUFFile,
        backend: Backend,
        size: CacheSize,
        types: KVTypes,
        projector: GGUFFile | None = None,
    ) -> None:
        model.context = size.capacity
        place_weights(model, file, backend, projector)
        vision = vision_of(model)
        self.images: EncodedImages | None = None
        # Heads of encoders have sizes that quantized types do not come in, and are not kept.
        own_type = kv_types(None, backend, projector or file).keys
        caches = cache_memory(backend, model.layer_kinds(), size, types)
        if vision is not None:
            caches += _image_memory(backend, vision.shape, own_type, size.sequences)
        available = sum(device.available_bytes for device in backend.devices())
        self.needs = MemoryNeeds(backend.memory().weights, caches, None, available)
        if self.needs.total <= available:
            self.cache = build_cache(backend, model.layer_kinds(), size, types)
            makes_text = model.config.pooling is None
            self.program = Program(
                model,
                self.cache,
                backend,
                size.max_batch,
                max_outputs=max(size.sequences, _MIN_OUTPUTS) if makes_text else size.max_batch,
                max_top_logits=_MAX_LIKELY if makes_text else 0,
            )
            if vision is not None:
                self.images = EncodedImages(EncoderProgram(vision, backend, own_type), size.sequences)
            self.needs = replace(self.needs, plans=backend.memory().plans)


def _image_memory(backend: Backend, shape: EncoderShape, dtype: DType, parallel: int) -> list[KindMemory]:
    num_bytes = EncodedImages.bytes_for(shape, parallel)
    rows = num_bytes // (4 * shape.row_size)
    return [encoder_memory(backend, shape, dtype), KindMemory("encoded images", 1, rows, num_bytes)]


def kv_types(name: str | None, backend: Backend, file: GGUFFile) -> KVTypes:
    """Return the types of a name; without one, float32 for models of float32 matrices.

    Their users want exact numbers.
    """
    if name is not None:
        return KVTypes.parse(name)
    matrices = [info for info in file.tensors.values() if len(info.shape) > 1]
    is_exact = all(info.type is QuantType.F32 for info in matrices)
    dtype = DType.F32 if is_exact else backend.default_kv_dtype
    return KVTypes(dtype, dtype)


def check_form(types: KVTypes, flash: bool) -> None:
    """Raise OptionError for quantized keys and values without fused attention, which alone reads them."""
    quantized = [dtype.value for dtype in (types.keys, types.values) if dtype in (DType.Q8_0, DType.Q4_0)]
    if quantized and not flash:
        raise OptionError(
            f"keys and values of type {quantized[0]} need flash attention, which is switched off: remove "
            "OLLAMA_FLASH_ATTENTION=0 or flash_attention=False, or use f16, bf16 or f32"
        )
