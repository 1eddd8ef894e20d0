"""Key/value caches: what a sequence has computed so far, kept so that it is not computed again."""

from chaski.kvcache.base import Cache, KVShape, KVTypes, LayerCache
from chaski.kvcache.causal import CausalCache
from chaski.kvcache.reach import Reach
from chaski.kvcache.wrapper import WrapperCache

__all__ = ["Cache", "CausalCache", "KVShape", "KVTypes", "LayerCache", "Reach", "WrapperCache"]
