"""GLM 5.3 Flash (Z.ai 2026), text."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.blocks import block_metadata, num_blocks
from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.families import deepseek32, kimi_linear
from chaski.convert.family import Family
from chaski.convert.latent import latent_metadata
from chaski.convert.metadata import Metadata, common_metadata
from chaski.convert.tensors import Planned
from chaski.ml.moe_ops import Gating


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("mla_use_nope", True)
    config.expect("mhc", True)
    config.expect("index_kpool_always_select_tail", True)
    delta, heads = config.part("linear_attn_config"), config.get("num_attention_heads", int)
    delta.expect("num_heads", heads)
    blocks = num_blocks(config)
    layers = config.count("num_hidden_layers") + blocks
    entries = common_metadata(config)
    limit = config.get("swiglu_limit", float, None)
    limits = (
        {} if limit is None else dict.fromkeys(("swiglu_clamp_exp", "swiglu_clamp_shexp"), [limit] * layers)
    )
    own = [*(kind == "full" for kind in config.list("indexer_types", str)), *[True] * blocks]
    return {
        **entries,
        **latent_metadata(config),
        **expert_metadata(
            config,
            "expert_feed_forward_length",
            "expert_shared_count",
            "expert_weights_norm",
            "expert_weights_scale",
            "leading_dense_block_count",
        ),
        **limits,
        **({"attention.indexer.types": own} if len(own) == layers else {}),
        "attention.head_count_kv": [
            *(int(kind != "linear_attention") for kind in config.list("layer_types", str)),
            *[1] * blocks,
        ],
        "attention.indexer.head_count": config.get("index_n_heads", int),
        "attention.indexer.key_length": config.get("index_head_dim", int),
        "attention.indexer.kpool": config.get("index_kpool", int),
        "attention.indexer.kpool_select_tail": True,
        "attention.indexer.top_k": config.get("index_topk", int),
        "attention.layer_norm_epsilon": 1e-6,
        "expert_gating_func": Gating.SIGMOID + 1,
        "hyper_connection.count": config.get("hc_mult", int),
        "hyper_connection.epsilon": config.get("hc_eps", float),
        "hyper_connection.sinkhorn_iterations": config.get("hc_sinkhorn_iters", int),
        "kda.gate_lower_bound": delta.get("gate_lower_bound", float, -5.0),
        "kda.head_dim": delta.get("head_dim", int),
        "ssm.conv_kernel": delta.get("short_conv_kernel_size", int),
        "vocab_size": config.get("vocab_size", int),
        **block_metadata(config),
    }


def special(config: Config) -> Specials:
    pools = {
        f"indexer_compressor_{part}": Special(sources=(f"self_attn.indexer.index_kpool_compress_{part}",))
        for part in ("gate", "ape")
    }
    return {**kimi_linear.special(config), **deepseek32.special(config), **pools}


_DERIVED = derived_family("glm5-next", metadata, special)
_MATRICES = ("hc_attn_fn", "hc_ffn_fn", "indexer_compressor_gate")


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    """Yield the tensors. Matrices whose names have no suffix are no biases."""
    biases = tuple(f"{name}.bias" for name in _MATRICES)
    return (each for each in _DERIVED.tensors(config, names) if not each.name.endswith(biases))


_UNUSED = (r"visual\..*", r"vision_(tower|model)\..*")
FAMILY = Family("glm5-next", metadata, tensors, _UNUSED)
CHECKPOINTS = ("Glm5NextForConditionalGeneration",)
