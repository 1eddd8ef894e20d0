"""LLaDA (Nie et al. 2025), whose configuration has the names of OLMo's."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.denoising import BIDIRECTIONAL, mask_role, unshifted
from chaski.convert.derived import Special, Specials, derived_family, rotated_heads
from chaski.convert.metadata import Metadata, common_metadata, head_size

_SYNONYMS = {
    "activation_type": "hidden_act",
    "d_model": "hidden_size",
    "max_sequence_length": "max_position_embeddings",
    "mlp_hidden_size": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "weight_tying": "tie_word_embeddings",
}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("block_type", "llama")
    config.expect("layer_norm_type", "rms")
    config.expect("clip_qkv", None)
    for key in ("alibi", "attention_layer_norm", "input_emb_norm", "scale_logits"):
        config.expect(key, False)
    return (
        common_metadata(config)
        | BIDIRECTIONAL
        | {"vocab_size": config.get("vocab_size", int), "rope.dimension_count": head_size(config)}
    )


def special(config: Config) -> Specials:
    rotated = rotated_heads(config)
    return {
        "token_embd": Special(sources=("wte",)),
        "output": Special(sources=("ff_out",)),
        "output_norm": Special(sources=("ln_f",)),
        "attn_q": Special(sources=("q_proj",), arrange=rotated["attn_q"].arrange),
        "attn_k": Special(sources=("k_proj",), arrange=rotated["attn_k"].arrange),
        "attn_v": Special(sources=("v_proj",)),
        "attn_output": Special(sources=("attn_out",)),
        "attn_norm": Special(sources=("attn_norm",)),
        "ffn_norm": Special(sources=("ff_norm",)),
        "ffn_gate": Special(sources=("ff_proj",)),
        "ffn_up": Special(sources=("up_proj",)),
        "ffn_down": Special(sources=("ff_out",)),
    }


FAMILY = derived_family("llada", metadata, special, synonyms=_SYNONYMS, roles=mask_role, measured=unshifted)
CHECKPOINTS = ("LLaDAModelLM",)
