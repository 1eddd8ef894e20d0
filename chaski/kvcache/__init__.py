"""Key/value caches: what a sequence has computed so far, kept so that it is not computed again."""

from chaski.kvcache.attention_span import AttentionSpan
from chaski.kvcache.base import KV_TYPES, Cache, KVShape, KVTypes, LayerCache, LeafCache
from chaski.kvcache.build import KindMemory, build_cache, cache_memory
from chaski.kvcache.causal import CausalCache, StoredLayer
from chaski.kvcache.encoder import EncoderCache, EncoderLayer
from chaski.kvcache.extents import Extent, Span
from chaski.kvcache.kinds import (
    CacheSize,
    Causal,
    Checkpoints,
    Encoder,
    LayerKind,
    Recurrent,
    StateShape,
    delayed_rows,
    gated_delta,
    linear_attention,
    matrix_states,
    pooled,
)
from chaski.kvcache.masks import MaskInputs
from chaski.kvcache.recurrent import RecurrentCache, RecurrentLayer
from chaski.kvcache.wrapper import WrapperCache

__all__ = [
    "KV_TYPES",
    "AttentionSpan",
    "Cache",
    "CacheSize",
    "Causal",
    "CausalCache",
    "Checkpoints",
    "Encoder",
    "EncoderCache",
    "EncoderLayer",
    "Extent",
    "KVShape",
    "KVTypes",
    "KindMemory",
    "LayerCache",
    "LayerKind",
    "LeafCache",
    "MaskInputs",
    "Recurrent",
    "RecurrentCache",
    "RecurrentLayer",
    "Span",
    "StateShape",
    "StoredLayer",
    "WrapperCache",
    "build_cache",
    "cache_memory",
    "delayed_rows",
    "gated_delta",
    "linear_attention",
    "matrix_states",
    "pooled",
]
