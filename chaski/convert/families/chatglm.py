"""ChatGLM 2 and 3, and GLM 4 of 2024 (GLM Team 2024), in the form of their authors and of transformers."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata, num_rotated

_ROTATED = 0.5
_BASE = 10000.0
_SYNONYMS = {
    "ffn_hidden_size": "intermediate_size",
    "kv_channels": "head_dim",
    "layernorm_epsilon": "rms_norm_eps",
    "multi_query_group_num": "num_key_value_heads",
    "num_layers": "num_hidden_layers",
    "padded_vocab_size": "vocab_size",
    "seq_length": "max_position_embeddings",
}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("rmsnorm", True)
    config.expect("post_layer_norm", True)
    config.expect("apply_residual_connection_post_layernorm", False)
    base = _BASE * config.get("rope_ratio", float, 1.0)
    entries = {"rope.freq_base": base} | common_metadata(config)
    entries["rope.dimension_count"] = num_rotated(config, _ROTATED)
    size = config.get("hidden_size", int) // config.get("num_attention_heads", int)
    if entries.get("attention.key_length") == size:  # the usual size
        del entries["attention.key_length"], entries["attention.value_length"]
    return entries


FAMILY = derived_family("chatglm", metadata, synonyms=_SYNONYMS, unused=(r"rotary_pos_emb\.inv_freq",))
CHECKPOINTS = ("ChatGLMForConditionalGeneration", "ChatGLMModel", "GlmForCausalLM")
