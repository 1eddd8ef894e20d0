"""Proposals for unknown names: `suggestion` finds a near name, or chaski's name for one of another program.

Commands, `/set parameter`, Modelfiles and Python's keyword arguments use it in their errors. The module reads
no files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

__all__ = [
    "CHAT_VERBS",
    "FOREIGN",
    "VERBS",
    "Foreign",
    "advice",
    "equivalent",
    "near_names",
    "normalized",
    "suggestion",
]

_CUTOFF = 0.6
_TIE = 0.06
_MOST = 3
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Foreign(Struct, frozen=True):
    """A name that another program gives to something that chaski has.

    ours    chaski's names for it: an option, a keyword or an argument, or a variable of the environment
    source  the program
    """

    ours: tuple[str, ...]
    source: str


_OPENAI, _ANTHROPIC, _LLAMA, _VLLM = "OpenAI's API", "Anthropic's API", "llama.cpp", "vLLM"
_TRANSFORMERS, _BINDINGS, _STUDIO, _GEMINI = "transformers", "llama-cpp-python", "LM Studio", "Gemini's API"
_OLLAMA = "Ollama"

# Names without hyphens and capitals; a name with one hyphen is an abbreviation on the command line.
_CONTEXT = "num_ctx context OLLAMA_CONTEXT_LENGTH"
_THREADS = "num_thread threads CHASKI_THREADS"
_LAYERS = "num_gpu CHASKI_NUM_GPU"
_PARALLEL = "parallel OLLAMA_NUM_PARALLEL"
_KEEP = "keepalive keep_alive OLLAMA_KEEP_ALIVE"
_THINK = "think"
# fmt: off
_ROWS = (
    ("num_predict", _OPENAI, "max_tokens max_completion_tokens max_output_tokens"),
    ("num_predict", _LLAMA, "-n predict n_predict"),
    ("num_predict", _TRANSFORMERS, "max_new_tokens max_length"),
    ("num_predict", _ANTHROPIC, "max_tokens_to_sample"),
    ("min_tokens", _TRANSFORMERS, "min_new_tokens min_length"),
    ("denoising_steps", _LLAMA, "diffusion_steps"),
    ("denoising_block", _LLAMA, "diffusion_block_length"),
    (_CONTEXT, _LLAMA, "-c ctx ctx_size n_ctx"),
    (_CONTEXT, _VLLM, "max_model_len max_seq_len"),
    (_CONTEXT, _STUDIO, "context_length context_size"),
    (_THREADS, _LLAMA, "-t n_threads threads_batch -tb"),
    (_LAYERS, _LLAMA, "-ngl ngl n_gpu_layers gpu_layers"),
    (_LAYERS, _STUDIO, "gpu gpu_offload"),
    (_LAYERS, "KoboldCpp", "gpulayers"),
    ("main_gpu CHASKI_MAIN_GPU", _LLAMA, "-mg"),
    ("tensor_split CHASKI_TENSOR_SPLIT", _LLAMA, "-ts"),
    ("backend CHASKI_BACKEND", _LLAMA, "-dev device"),
    ("backend CHASKI_BACKEND", _TRANSFORMERS, "device_map"),
    ("OLLAMA_SCHED_SPREAD", _VLLM, "tensor_parallel_size -tp"),
    ("OLLAMA_GPU_OVERHEAD", _VLLM, "gpu_memory_utilization"),
    ("replicas CHASKI_REPLICAS", _VLLM, "data_parallel_size -dp"),
    (_PARALLEL, _LLAMA, "-np n_parallel slots"),
    (_PARALLEL, _VLLM, "max_num_seqs"),
    ("num_batch", _LLAMA, "-b -ub n_batch ubatch_size n_ubatch"),
    ("num_batch", _VLLM, "max_num_batched_tokens"),
    ("batch", "llama-bench", "-npl"),
    ("prompt", "llama-bench", "-pg -npp n_prompt"),
    ("generate", "llama-bench", "-n -ntg n_gen"),
    ("repeat", "llama-bench", "-r repetitions"),
    ("depth", "llama-bench", "-d n_depth"),
    ("kv_type OLLAMA_KV_CACHE_TYPE", _LLAMA, "-ctk -ctv cache_type_k cache_type_v type_k type_v"),
    ("kv_type OLLAMA_KV_CACHE_TYPE", _VLLM, "kv_cache_dtype"),
    ("flash_attention OLLAMA_FLASH_ATTENTION", _LLAMA, "-fa flash_attn"),
    ("prompt_cache CHASKI_PREFIX_CACHE", _LLAMA, "cache_prompt no_cache_prompt"),
    ("prompt_cache CHASKI_PREFIX_CACHE", _VLLM, "enable_prefix_caching no_enable_prefix_caching"),
    ("CHASKI_PREFIX_CACHE_MEMORY", _LLAMA, "-cram cache_ram"),
    ("model", _LLAMA, "-m model_url -mu -hf hf_repo -hfr"),
    ("model", _VLLM, "served_model_name"),
    ("model", _BINDINGS, "model_path"),
    ("model", _TRANSFORMERS, "model_id model_name model_name_or_path pretrained_model_name_or_path"),
    ("OLLAMA_MODELS", _LLAMA, "models_dir"),
    ("OLLAMA_MODELS", _VLLM, "download_dir"),
    ("projector", _LLAMA, "-mm mmproj mmproj_url"),
    ("draft", _LLAMA, "-md model_draft draft_model spec_draft_model"),
    ("draft", _VLLM, "speculative_model"),
    ("draft", _TRANSFORMERS, "assistant_model"),
    ("draft_num_predict", _LLAMA, "draft_max draft_n spec_draft_n_max"),
    ("draft_num_predict", _TRANSFORMERS, "num_assistant_tokens"),
    ("draft_num_predict", _VLLM, "num_speculative_tokens"),
    ("adapter adapters CHASKI_ADAPTERS", _LLAMA, "lora lora_path lora_scaled"),
    ("adapter adapters CHASKI_ADAPTERS", _VLLM, "lora_modules lora_request"),
    ("listen", _LLAMA, "port host"),
    ("host OLLAMA_HOST", _LLAMA, "port"),
    ("host OLLAMA_HOST", _OPENAI, "base_url"),
    ("host OLLAMA_HOST", _STUDIO, "bind"),
    ("CHASKI_API_KEYS", _LLAMA, "api_key api_key_file"),
    ("OLLAMA_ORIGINS", _VLLM, "allowed_origins cors"),
    ("OLLAMA_ORIGINS", _LLAMA, "cors_origins"),
    ("OLLAMA_MAX_LOADED_MODELS", _LLAMA, "models_max"),
    ("OLLAMA_MAX_QUEUE", _VLLM, "max_queue_size"),
    (_KEEP, _OLLAMA, "keep_alive"),
    (_KEEP, _STUDIO, "ttl"),
    (_KEEP, _LLAMA, "sleep_idle_seconds"),
    ("temperature", _LLAMA, "temp"),
    ("seed", _LLAMA, "-s rng_seed"),
    ("seed", _TRANSFORMERS, "random_seed manual_seed"),
    ("top_k", _GEMINI, "k"),
    ("top_n_sigma", _LLAMA, "top_nsigma"),
    ("typical_p", _LLAMA, "typical"),
    ("repeat_last_n", _STUDIO, "penalty_last_n"),
    ("dry_sequence_breakers", _LLAMA, "dry_sequence_breaker"),
    ("bad_words", _TRANSFORMERS, "bad_words_ids"),
    ("stop", _ANTHROPIC, "stop_sequences"),
    ("stop", _LLAMA, "-r reverse_prompt antiprompt"),
    ("stop", _TRANSFORMERS, "stop_strings"),
    ("stop_token_ids", _TRANSFORMERS, "eos_token_id"),
    ("num_beams", _VLLM, "beam_width use_beam_search"),
    ("logprobs", _TRANSFORMERS, "output_scores"),
    ("top_logprobs", _LLAMA, "n_probs"),
    ("format", _OPENAI, "response_format"),
    ("format", _LLAMA, "-j -jf json json_schema json_schema_file"),
    ("format", _VLLM, "guided_json structured_outputs"),
    ("format", "other libraries", "schema output_schema response_model"),
    ("regex", _VLLM, "guided_regex"),
    ("choice", _VLLM, "guided_choice"),
    ("grammar", _VLLM, "guided_grammar"),
    ("grammar", _LLAMA, "grammar_file"),
    ("shift", _LLAMA, "context_shift no_context_shift"),
    ("num_keep", _LLAMA, "keep n_keep"),
    ("num_keep", "earlier versions of Ollama", "keep_tokens"),
    ("system", _LLAMA, "-sys system_prompt -sysf system_prompt_file"),
    ("system", _OPENAI, "instructions developer"),
    ("system", _STUDIO, "-s"),
    ("prompt", _LLAMA, "-p"),
    ("prompt", _STUDIO, "message"),
    ("prompt", _OPENAI, "input"),
    (_THINK, _LLAMA, "reasoning -rea reasoning_effort"),
    (_THINK, _OPENAI, "effort"),
    (_THINK, _ANTHROPIC, "thinking"),
    (_THINK, "Qwen's templates", "enable_thinking no_think"),
    ("hidethinking", _LLAMA, "reasoning_format"),
    ("raw", _LLAMA, "-no-cnv no_conversation"),
    ("verbose", _LLAMA, "-v perf show_timings log_verbose verbosity -lv"),
    ("verbose", _STUDIO, "stats"),
    ("verbose", _OLLAMA, "debug"),
    ("quantize", _LLAMA, "outtype"),
    ("quantize", "other programs", "quant quantization"),
    ("file", "docker", "modelfile"),
    ("output", _LLAMA, "outfile output_file"),
    ("access_log", _LLAMA, "log_file"),
    ("dimensions", "sentence-transformers", "truncate_dim output_dimensionality"),
    ("progress", _TRANSFORMERS, "show_progress progress_bar"),
)
_VERB_ROWS = (
    ("run", _LLAMA, "llama_cli main cli completion llama"),
    ("run", _VLLM, "chat complete"),
    ("run", "mlx-lm", "generate"),
    ("run", _STUDIO, "load"),
    ("run", "other programs", "ask prompt repl embed query"),
    ("serve", _LLAMA, "llama_server server"),
    ("serve", "other programs", "start api daemon web ui webui open"),
    ("pull", _STUDIO, "get"),
    ("pull", "other programs", "download fetch install add"),
    ("rm", "other programs", "remove delete del uninstall erase"),
    ("cp", "other programs", "copy rename mv move alias tag"),
    ("push", "other programs", "upload publish"),
    ("create", "other programs", "build import make"),
    ("create", _LLAMA, "quantize llama_quantize"),
    ("convert", _LLAMA, "convert_hf_to_gguf llama_convert"),
    ("stop", _STUDIO, "unload"),
    ("stop", "other programs", "kill end"),
    ("ps", "other programs", "status loaded running"),
    ("top", "other programs", "monitor watch htop"),
    ("list", "other programs", "tags images dir models_list"),
    ("show", "other programs", "inspect describe card"),
    ("bench", _LLAMA, "llama_bench batched_bench"),
    ("bench", "other programs", "benchmark perf speed"),
    ("batch", _VLLM, "run_batch"),
    ("prune", "other programs", "gc clean cleanup"),
    ("verify", "other programs", "check fsck"),
    ("models", "other programs", "search families architectures"),
    ("info", _VLLM, "collect_env"),
    ("info", "other programs", "config env settings doctor devices system"),
    ("install", "systemd", "enable"),
    ("uninstall", "systemd", "disable"),
    ("service", "other programs", "daemonize autostart systemd"),
    ("shard", _LLAMA, "rpc_server"),
)
_ADVICE_ROWS = (
    ("it is not needed: the model's own chat template is always used", "jinja chat_template_file"),
    ("it is not needed: without a prompt, chaski run MODEL starts a chat",
        "-i -cnv interactive conversation interactive_first"),
    ("it is not needed: a terminal gets colors, unless NO_COLOR is set", "-co color log_colors"),
    ("write the path of the image into the prompt, as in ./cat.png", "image images"),
    ("pipe the file into the command: chaski run MODEL < FILE", "-f file binary_file -bf"),
    ("it is not needed: the server loads each model when a request names it; chaski list shows them",
        "-m model -hf hf_repo alias served_model_name"),
    ("it is not needed: it is always on", "-cb cont_batching metrics slots props embedding embeddings "
        "rerank reranking enable_auto_tool_choice enable_chunked_prefill"),
    ("it is not needed: files are mapped into memory", "mlock no_mmap mmap use_mlock load_mode -lm"),
    ("it is not needed: the file of a model says it", "dtype trust_remote_code tool_call_parser "
        "reasoning_parser tokenizer quantization rope_scaling rope_freq_base pooling chat_format"),
    ("/set parameter grammar sets it in a chat", "grammar grammar_file"),
)
_ADVICE_VERBS = (
    ("no account is needed; chaski pull --help and chaski push --help show the options for registries",
        "signin signout login logout"),
    ("start chaski serve, and set its address in the agent or editor", "launch agent claude codex"),
    ("pip install --upgrade chaski-llm updates chaski", "update upgrade self_update"),
    ("chaski service logs shows the log of the service", "log logs"),
)
_CHAT_ROWS = (
    ("/bye", "other programs", "/quit /q /logout /stop"),
    ("/load", _STUDIO, "/model"),
    ("/load", "other programs", "/use /switch"),
    ("/list", "other programs", "/models /ls"),
    ("/clear", "other programs", "/reset /new /restart /forget"),
    ("/show info", "other programs", "/info"),
    ("/?", "other programs", "/h /commands"),
    ("/set system", _STUDIO, "/system"),
    ("/set verbose", "other programs", "/verbose /debug"),
    ("/set think", "other programs", "/think /thinking"),
    ("/set nothink", "Qwen's templates", "/no_think"),
    ("/set format", "other programs", "/json /format"),
    ("/tools", "other programs", "/mcp /functions"),
)
# fmt: on


def _by_name(rows: Iterable[tuple[str, str, str]]) -> dict[str, tuple[Foreign, ...]]:
    """Return the meanings of each foreign name. Callers take the first one that they know."""
    found: dict[str, tuple[Foreign, ...]] = {}
    for ours, source, names in rows:
        for name in names.split():
            found[name] = (*found.get(name, ()), Foreign(tuple(ours.split()), source))
    return found


FOREIGN = _by_name(_ROWS)
"""The names of chaski's options in other programs."""
CHAT_VERBS = _by_name(_CHAT_ROWS)
"""The names of the commands of a chat in other programs."""
VERBS = _by_name(_VERB_ROWS)
"""The names of chaski's commands in other programs."""


def normalized(name: str) -> str:
    """Return a name in the spelling of options: `--maxTokens` becomes `max_tokens`."""
    return _CAMEL.sub("_", name.lstrip("-")).replace("-", "_").lower()


def equivalent(
    name: str, known: Iterable[str], table: dict[str, tuple[Foreign, ...]] = FOREIGN
) -> tuple[str, str] | None:
    """Return the known name that means the same as another name, and the program that has it; else None.

    The program is "" for another name of chaski, such as `context`, the keyword for `num_ctx`.

    name   as it was typed: `max_tokens`, `--max-tokens` or `-n`
    known  the names that the caller accepts, in the spelling of options
    """
    accepted, wanted = set(known), normalized(name)
    is_short = name.startswith("-") and not name.startswith("--")
    rows = [*(table.get(name, ()) if is_short else ()), *table.get(wanted, ())]
    rows += [Foreign(ours, "") for ours in _same(table) if wanted in ours]
    for row in rows:
        if (ours := next((each for each in row.ours if each in accepted), None)) is not None:
            return ours, row.source
    return None


def _same(table: dict[str, tuple[Foreign, ...]]) -> set[tuple[str, ...]]:
    """Return the groups of chaski's own names that mean the same."""
    return {row.ours for rows in table.values() for row in rows}


def advice(name: str, is_command: bool = False) -> str:
    """Return what to do instead of a foreign option or command that has no counterpart, or ""."""
    words = _words(name)
    rows = _ADVICE_VERBS if is_command else _ADVICE_ROWS
    return next((text for text, names in rows if words.intersection(names.split())), "")


def _words(name: str) -> set[str]:
    """Return the spellings of a name in the tables. One hyphen marks an abbreviation."""
    is_short = name.startswith("-") and not name.startswith("--")
    return {normalized(name), name} if is_short else {normalized(name)}


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that are spelled most like a name: usually one, at most three, or none."""
    from difflib import SequenceMatcher

    wanted = normalized(name)
    scores: dict[str, float] = {}
    for each in known:
        spelled = normalized(each)
        if len(wanted) > 1 and spelled.startswith(wanted):
            scores[each] = 1
        elif 2 * len(spelled) >= _CUTOFF * (len(wanted) + len(spelled)):  # else no score can be that high
            scores[each] = SequenceMatcher(None, wanted, spelled).ratio()
    best = max(scores.values(), default=0)
    near = [each for each, score in scores.items() if score >= max(best - _TIE, _CUTOFF)]
    return sorted(near, key=lambda each: -scores[each])[:_MOST]


def suggestion(
    name: str, known: Mapping[str, str] | Iterable[str], table: dict[str, tuple[Foreign, ...]] = FOREIGN
) -> str:
    """Return a question that proposes known names for an unknown one, or "" if none fits.

    `suggestion("max_tokens", names)` is "did you mean num_predict, which OpenAI's API calls max_tokens?".

    known  the names that the caller accepts; a mapping contains how to show each
    """
    shown = known if isinstance(known, Mapping) else {each: each for each in known}
    found = equivalent(name, shown, table)
    if found is not None and found[1]:
        calls = "call" if found[1].startswith("other ") else "calls"
        return f"did you mean {shown[found[0]]}, which {found[1]} {calls} {name}?"
    near = [shown[each] for each in ([found[0]] if found is not None else near_names(name, shown))]
    if not near:
        return ""
    *others, last = near
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
