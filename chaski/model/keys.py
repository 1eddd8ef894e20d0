"""The treatment of each metadata key of llama.cpp: read, refused by name, or known to change no result.

The names are those of its `llama-arch.cpp`, without the architecture. A key that would change the model's
results but that its architecture does not read is an error, so that no model is silently computed wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.architecture import Architecture

__all__ = ["HARMLESS", "READ", "REFUSED", "check_keys"]

_READ = """
    attention.causal attention.head_count attention.head_count_kv attention.key_length attention.value_length
    attention.layer_norm_epsilon attention.layer_norm_rms_epsilon
    block_count context_length embedding_length feed_forward_length pooling_type
    rope.dimension_count rope.freq_base rope.scale_linear
    rope.scaling.attn_factor rope.scaling.factor rope.scaling.original_context_length rope.scaling.type
    rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow rope.scaling.yarn_ext_factor
    rope.scaling.yarn_log_multiplier
    expert_count expert_feed_forward_length expert_gating_func expert_group_count expert_group_used_count
    expert_shared_feed_forward_length
    expert_used_count expert_weights_norm expert_weights_scale
"""
READ = frozenset(_READ.split())
"""Keys that all architectures read, or that go with tensors that they would refuse.

An architecture reads one of the two epsilons, by the kind of its norms; files may have both. Where it has no
experts, their tensors are refused.
"""

_SAME_AS = {
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_swa": "attention.value_length",
    "embedding_length_out": "embedding_length",
    "rope.dimension_count_swa": "rope.dimension_count",
    "rope.freq_base_swa": "rope.freq_base",
}

REFUSED: Mapping[str, tuple[object, ...]] = {
    "activation.situ_beta": (0.0,),
    "activation.situ_linear_beta": (0.0,),
    "activation_sparsity_scale": (-math.inf,),
    "attention.clamp_kqv": (0.0,),
    "attention.key_length_swa": (0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.output_scale": (0.0, 1.0),
    "attention.rope_pattern": (1, True),
    "attention.scale": (0.0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attention.temperature_scale": (0.0,),
    "attention.value_length_swa": (0,),
    "attention.value_scale": (0.0, 1.0),
    "attn_logit_softcapping": (0.0,),
    "classifier.pooling_type": (0, 2, 3, 4),  # only 1, the mean, changes the row that scores come from
    "embedding_length_out": (0,),
    "embedding_length_per_layer_input": (0,),
    "embedding_scale": (0.0, 1.0),
    "expert_group_scale": (0.0, 1.0),
    "experts_per_group": (0, 1),
    "final_logit_softcapping": (0.0,),
    "full_attention_interval": (0, 1),
    "hidden_activation": ("", "silu", "swiglu"),
    "hrm.h_cycles": (0, 1),
    "hrm.l_cycles": (0, 1),
    "hrm.layers_per_stack": (0,),
    "hrm.prefix_lm": (False,),
    "interleave_moe_layer_step": (0, 1),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "moe_every_n_layers": (0,),
    "nextn_predict_layers": (0,),
    "norm_before_fc": (False,),
    "norm_before_residual": (False,),
    "num_loops": (0, 1),
    "rescale_every_n_layers": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.dimension_count_swa": (0,),
    "rope.freq_base_swa": (0.0,),
    "rope.scaling.alpha": (0.0, 1.0),
    "router_logit_softcapping": (0.0,),
    "skip_loop_final_norm": (False,),
    "ssm.dt_b_c_rms": (False,),
    "swiglu_clamp_exp": (0.0,),
    "swiglu_clamp_shexp": (0.0,),
    "swin_norm": (False,),
    "use_parallel_residual": (False,),
}
"""Keys that change results, and the values with which they do not."""

_OF_TENSORS = """
    adapters.count adapters.lora_rank adapters.router_gain adapters.token_ids_activate
    adapters.token_ids_substitute altup.active_idx altup.num_inputs attn_res.block_size
    attention.compress_ratios attention.compress_rope_freq_base attention.decay_lora_rank
    attention.gate_lora_rank attention.group_norm_epsilon attention.group_norm_groups
    attention.iclr_lora_rank attention.indexer.head_count attention.indexer.key_length
    attention.indexer.block_size attention.indexer.kpool attention.indexer.kpool_select_tail
    attention.indexer.local_blocks attention.indexer.top_k attention.indexer.types
    attention.key_length_mla attention.key_length_mla_swa attention.kv_lora_rank
    attention.kv_lora_rank_swa attention.value_length_mla_swa attention.output_group_count
    attention.output_lora_rank attention.q_lora_rank attention.recurrent_layers
    attention.relative_buckets_count attention.value_length_mla attention.value_residual_mix_lora_rank
    block_size conv_group_size conv_kernel_size selector_rank selector_top_k convnext.block_count
    convnext.embedding_length decoder_block_count decoder_start_token_id deepstack_mapping
    n_deepstack_layers dense_2_feat_in dense_2_feat_out dense_3_feat_in dense_3_feat_out
    expert_chunk_feed_forward_length expert_latent_length expert_shared_count features_length
    hash_layer_count hyper_connection.count hyper_connection.epsilon hyper_connection.low_rank
    hyper_connection.magnitude hyper_connection.sinkhorn_iterations kda.gate_lower_bound kda.head_dim
    kda.safe_gate moe_latent_size ple.conv_kernel ple.eos_token_id ple.head_offsets ple.head_vocab_sizes
    ple.heads_per_ngram ple.image_token_id ple.layer_multipliers ple.layers ple.ngram_size
    posnet.block_count posnet.embedding_length shortconv.l_cache ssm.conv_kernel ssm.group_count
    ssm.inner_size ssm.state_size ssm.time_step_rank target_hidden_size target_layers
    time_decay_extra_dim time_mix_extra_dim token_shift_count wkv.head_size
"""
HARMLESS: Mapping[str, str] = {
    "attention.sliding_window_pattern": "applies only together with a window",
    "attention.temperature_length": "applies only with its scale; architectures read both or neither",
    "classifier.output_labels": "names of labels",
    "rope.dimension_sections": "in text, all coordinates of a token are equal",
    "rope.scaling.finetuned": "Granite reads it as a switch of the rope; in other models it changes nothing",
    "rope.scaling.yarn_attn_factor": "llama.cpp computes it from the factor",
    "tensor_data_layout": "all current files have this layout",
    "vocab_size": "the tensors define it",
    **dict.fromkeys(
        _OF_TENSORS.split(),
        "goes with tensors, which are refused where the architecture has none of them",
    ),
}
"""Keys that change no result as long as REFUSED and the tensors are checked, and the reasons."""


def check_keys(file: GGUFFile, architecture: Architecture) -> None:
    """Raise UnsupportedError for a key that would change what the model computes but is not read."""
    fixed = architecture.fixed
    for name in sorted(REFUSED.keys() | fixed.keys()):
        key = f"{architecture.name}.{name}"
        if key not in file.metadata or name in architecture.reads:
            continue
        value = file.metadata[key]
        if not _is_neutral(file, name, value, fixed.get(name) or REFUSED[name]):
            shown = f"{value}"[:40]
            raise UnsupportedError(
                f"{file.path}: {key} = {shown} changes what the model computes and is not supported "
                "for this architecture"
            )


def _is_neutral(file: GGUFFile, name: str, value: Any, neutral: tuple[object, ...]) -> bool:
    values = value.tolist() if isinstance(value, np.ndarray) else [value]
    if name == "attention.sliding_window":  # a window as long as the context is no window
        length = file.metadata.get(f"{file.architecture}.context_length")
        return all(each == 0 or (isinstance(length, int) and each >= length) for each in values)
    other = file.metadata.get(f"{file.architecture}.{_SAME_AS.get(name, '')}")
    return all(each in neutral or (isinstance(other, int | float) and each == other) for each in values)
