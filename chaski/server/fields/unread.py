"""Fields of other engines and providers that no endpoint reads."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["HARMLESS", "REFUSED"]

HARMLESS: frozenset[str] = frozenset(
    (
        # The client's identity, for accounts and statistics, which this server does not have.
        *("user", "metadata", "safety_identifier", "request_id", "user_profile_id", "workspace_id"),
        *("billing_policy", "fallback_credit_token", "betas", "diagnostics", "client_metadata"),
        # Where and how soon the answer is computed, and whether it is stored; the answer stays the same.
        *("service_tier", "priority", "speed", "inference_geo", "fallbacks", "prediction", "store"),
        *("id_slot", "n_cache_reuse", "backend_sampling", "embedding_only"),
        # The comments that llama.cpp's streams contain while they are silent.
        "sse_ping_interval",
        # The padding of streams, which this server never adds.
        "stream_options",
        # Prompts are always cached, and grammars have one backend.
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_control"),
        *("cache_prompt", "guided_decoding_backend"),
        # Details of samplers and penalties that are refused if they are enabled.
        *("mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold"),
        *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    )
)

REFUSED: Mapping[str, tuple[object, ...]] = {
    # OpenAI
    "audio": (),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("auto", "none"),
    # Anthropic
    "container": (),
    "mcp_servers": ([],),
    "output_format": (),
    # vLLM
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "logits_processors": ([],),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_special_tokens": (),
    "documents": ([],),
    "chat_template": (),
    "mm_processor_kwargs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_whitespace_pattern": (),
    "structured_outputs": (),
    "structural_tag": (),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "include_reasoning": (True,),
    "prompt_logprobs": (),
    "best_of": (1,),
    "echo": (False,),
    "rank_fields": (["text"],),
    "max_tokens_per_doc": (),
    "max_chunks_per_doc": (),
    # llama.cpp
    "grammar": ("",),
    "grammar_lazy": (False,),
    "json_schema": (),
    "mirostat": (0,),
    "dynatemp_range": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "top_n_sigma": (-1, 0),
    "min_keep": (0, 1),
    "n_probs": (0,),
    "n_discard": (0,),
    "post_sampling_probs": (False,),
    "return_tokens": (False,),
    "lora": ([],),
    "image_data": ([],),
    "input_extra": ([],),
    "reasoning_budget": (-1,),
    "thinking_token_budget": (-1,),
    # Ollama, whose newest engine no longer has them
    "tfs_z": (1,),
    "penalize_newline": (True,),
}
"""Values that ask for nothing, by the name of the field. Null never asks for anything."""
