"""Building blocks of models. They declare weights and record operations; they do not compute."""

from chaski.ml.nn.attention import SharedHistory, attend, attention
from chaski.ml.nn.latent import JoinedLatentAttention, LatentAttention, LatentConfig
from chaski.ml.nn.layers import (
    MLP,
    ConvKernel,
    Embedding,
    FusedGLU,
    GroupedLinear,
    HeadNorms,
    LayerNorm,
    Linear,
    Norm,
    PatchEmbedding,
    PlainLayerNorm,
    RMSNorm,
    StreamNorm,
    SwiGLU,
    TransposedLinear,
)
from chaski.ml.nn.module import Joined, Module
from chaski.ml.nn.moe import (
    ChoiceBias,
    ExpertLinear,
    GatedSharedExpert,
    HashMoE,
    MoE,
    MoEWithSharedExpert,
    RouterConfig,
    SharedExpert,
)
from chaski.ml.nn.rope import RopeFactors
from chaski.ml.nn.sandwich import DecoderLayer, PostNormLayer, SandwichLayer, output_rows

__all__ = [
    "MLP",
    "ChoiceBias",
    "ConvKernel",
    "DecoderLayer",
    "Embedding",
    "ExpertLinear",
    "FusedGLU",
    "GatedSharedExpert",
    "GroupedLinear",
    "HashMoE",
    "HeadNorms",
    "Joined",
    "JoinedLatentAttention",
    "LatentAttention",
    "LatentConfig",
    "LayerNorm",
    "Linear",
    "MoE",
    "MoEWithSharedExpert",
    "Module",
    "Norm",
    "PatchEmbedding",
    "PlainLayerNorm",
    "PostNormLayer",
    "RMSNorm",
    "RopeFactors",
    "RouterConfig",
    "SandwichLayer",
    "SharedExpert",
    "SharedHistory",
    "StreamNorm",
    "SwiGLU",
    "TransposedLinear",
    "attend",
    "attention",
    "output_rows",
]
