"""CodeShell (Xie et al. 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, rope


def metadata(config: Config) -> Metadata:
    config.expect("activation_function", "gelu_pytorch_tanh")
    config.expect("position_embedding_type", "rope")
    config.expect("group_query_attention", True)
    rope(config).expect("rope_type", "default")
    hidden = config.get("n_embd", int)
    return {
        "block_count": config.count("n_layer"),
        "context_length": config.get("n_positions", int),
        "embedding_length": hidden,
        "feed_forward_length": config.get("n_inner", int, 4 * hidden),
        "attention.head_count": config.get("n_head", int),
        "attention.head_count_kv": config.get("num_query_groups", int),
        "attention.layer_norm_epsilon": config.get("layer_norm_epsilon", float),
        "rope.freq_base": 10000.0,
        "rope.scaling.factor": 1.0,
        "rope.scaling.type": "linear",
    }


FAMILY = derived_family("codeshell", metadata, unused=(r"h\.\d+\.attn\.rotary_emb\.inv_freq",))
CHECKPOINTS = ("CodeShellForCausalLM",)
