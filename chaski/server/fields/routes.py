"""The fields of requests, by endpoint. A test holds this table to what the dialects really read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FIELDS", "Field"]


@dataclass(frozen=True, slots=True)
class Field:
    """schema: of JSON Schema, without the description.

    parts: the fields of an object that are read; None for any.
    """

    schema: Mapping[str, Any]
    meaning: str
    is_required: bool = False
    parts: Collection[str] | None = None


_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_WHOLE = {"type": "integer"}
_NUMBER = {"type": "number"}
_OBJECT = {"type": "object"}
_OBJECTS = {"type": "array", "items": _OBJECT}
_TEXTS = {"type": "array", "items": _TEXT}
_WHOLES = {"type": "array", "items": _WHOLE}
_TEXT_OR_TEXTS = {"oneOf": [_TEXT, _TEXTS]}
_INPUTS = {"oneOf": [_TEXT, _WHOLES, {"type": "array", "items": {"oneOf": [_TEXT, _WHOLES]}}]}
_TEXT_OR_OBJECTS = {"oneOf": [_TEXT, _OBJECTS]}
_TEXT_OR_OBJECT = {"oneOf": [_TEXT, _OBJECT]}

Fields = Mapping[str, Field]

_MODEL = {"model": Field(_TEXT, "the name of a model: [host/][namespace/]model[:tag]", True)}
_NAME = {"name": Field(_TEXT, "the same as `model`, as older clients call it")}
_KEEP_ALIVE = {
    "keep_alive": Field(
        {"oneOf": [_TEXT, _NUMBER]},
        "how long the model stays in memory after this: seconds or a duration such as 5m; below 0 for ever, "
        "0 not at all",
    )
}
_OPTIONS = {"options": Field(_OBJECT, "options of sampling and loading: num_ctx, temperature, seed, stop …")}
_STREAM = "whether the answer comes in pieces"
_NATIVE: Fields = {
    **_MODEL,
    **_NAME,
    **_OPTIONS,
    **_KEEP_ALIVE,
    "stream": Field(_FLAG, f"{_STREAM}, one JSON object a line; true by default"),
    "truncate": Field(_FLAG, "leave out what does not fit into the context, and say so; true by default"),
    "shift": Field(_FLAG, "forget half when the context is full, instead of ending; true by default"),
    "think": Field({"oneOf": [_FLAG, _TEXT]}, "whether to think, or how much: low, medium, high, max"),
    "format": Field(_TEXT_OR_OBJECT, "`json`, or a JSON schema that the answer follows"),
    "logprobs": Field(_FLAG, "whether to tell the log-probability of each token"),
    "top_logprobs": Field(_WHOLE, "and of that many others in its place, 0 to 20"),
}
_TRUNCATE = {
    "truncate": Field(
        _FLAG, "leave out what does not fit into the context; false refuses it. True by default"
    )
}
_EMBED: Fields = {
    **_MODEL,
    **_NAME,
    **_OPTIONS,
    **_KEEP_ALIVE,
}
_CONSTRAINTS: Fields = {
    "guided_json": Field(_TEXT_OR_OBJECT, "as in vLLM: a JSON schema that the answer follows"),
    "guided_regex": Field(_TEXT, "as in vLLM: a regular expression that the whole answer matches"),
    "guided_choice": Field(_TEXTS, "as in vLLM: texts one of which is the answer"),
    "guided_grammar": Field(_TEXT, "as in vLLM: a grammar in Lark or GBNF that the answer follows"),
    "structured_outputs": Field(
        _OBJECT,
        "as in vLLM: one of `json`, `regex`, `choice`, `grammar`, `json_object`",
        parts=("json", "regex", "choice", "grammar", "json_object", "structural_tag"),
    ),
    "json_schema": Field(_TEXT_OR_OBJECT, "as in llama.cpp: a JSON schema that the answer follows"),
    "grammar": Field(_TEXT, "as in llama.cpp: a grammar in GBNF, or in Lark"),
}
_SAMPLING: Fields = {
    "min_tokens": Field(_WHOLE, "tokens before which nothing ends the answer"),
    "ignore_eos": Field(_FLAG, "whether the model's own ends are never chosen"),
    "stop_token_ids": Field(_WHOLES, "tokens that end the answer as well"),
    "include_stop_str_in_output": Field(_FLAG, "whether what ends the answer is part of it"),
    "bad_words": Field(_TEXT_OR_TEXTS, "texts whose tokens the answer never completes"),
    "repetition_penalty": Field(_NUMBER, "divides the logits of tokens of prompt and answer"),
    "dry_multiplier": Field(_NUMBER, "lowers what would go on with a repetition; 0 is off"),
    "dry_base": Field(_NUMBER, "how much more for longer ones; 1.75 by default"),
    "dry_allowed_length": Field(_WHOLE, "repetitions shorter than this are free; 2 by default"),
    "dry_penalty_last_n": Field(_WHOLE, "how many of the latest tokens are searched; below 0 all"),
    "dry_sequence_breakers": Field(_TEXT_OR_TEXTS, "texts over which no repetition reaches"),
    "top_n_sigma": Field(_NUMBER, "keep logits within so many standard deviations; 0 or less is off"),
    "xtc_probability": Field(_NUMBER, "how often the top choices are excluded, 0 to 1"),
    "xtc_threshold": Field(_NUMBER, "from which probability on; 0.1 by default"),
}
_PLAIN_OPTIONS: Fields = {
    "temperature": Field(_NUMBER, "divides the logits; 0 takes the most likely token; 1 by default"),
    "top_p": Field(_NUMBER, "keep the most likely tokens up to this probability; 1 by default"),
    "seed": Field(_WHOLE, "for a draw that can be repeated"),
    "frequency_penalty": Field(_NUMBER, "lowers what came already, by how often it did"),
    "presence_penalty": Field(_NUMBER, "lowers what came already"),
    "logit_bias": Field(_OBJECT, "what is added to logits, -100 to 100 by token id"),
    "stop": Field(_TEXT_OR_TEXTS, "texts that end the answer"),
    **_OPTIONS,
    **_SAMPLING,
    **_CONSTRAINTS,
    **{
        name: Field(_NUMBER, "the option of Ollama of that name")
        for name in ("top_k", "min_p", "num_ctx", "repeat_penalty", "repeat_last_n", "typical_p", "num_keep")
    },
}
_STREAM_OPTIONS = Field(
    _OBJECT,
    "`include_usage`: whether a stream ends with counts; no padding is ever included",
    parts=("include_usage", "include_obfuscation"),
)
_THINKING: Fields = {
    "think": Field({"oneOf": [_FLAG, _TEXT]}, "whether to think, or how much; all that say it must agree"),
    "enable_thinking": Field(_FLAG, "the same"),
    "reasoning_effort": Field(_TEXT, "the same: none, minimal, low, medium, high, xhigh, max"),
    "reasoning": Field(
        _OBJECT,
        "the same, as `effort` or `enabled`; thoughts are told whole, whatever `summary` says",
        parts=("effort", "enabled", "summary", "generate_summary"),
    ),
    "chat_template_kwargs": Field(
        _OBJECT,
        "the same, as `enable_thinking`, `thinking` or `reasoning_effort`; further variables of the template",
    ),
}
_OPENAI: Fields = {
    **_MODEL,
    **_THINKING,
    **_TRUNCATE,
    **_PLAIN_OPTIONS,
    **_KEEP_ALIVE,
    "max_tokens": Field(_WHOLE, "tokens of the answer at most; -1: as many as the context holds"),
    "max_completion_tokens": Field(_WHOLE, "the same; it goes first"),
    "n": Field(_WHOLE, "how many answers, 1 to 16"),
    "stream": Field(_FLAG, f"{_STREAM}, as server-sent events; false by default"),
    "stream_options": _STREAM_OPTIONS,
    "response_format": Field(
        _OBJECT, "text, json_object, or a json_schema that the answer follows", parts=("type", "json_schema")
    ),
}
_TOOLS: Fields = {
    "tools": Field(_OBJECTS, "functions that the model may call"),
    "tool_choice": Field(_TEXT_OR_OBJECT, "none, auto, required, or the one to call; enforced"),
    "parallel_tool_calls": Field(_FLAG, "whether there may be more calls than one; true by default"),
}
_MESSAGES: Fields = {
    **_MODEL,
    **_THINKING,
    "messages": Field(_OBJECTS, "the conversation: texts, thinking, calls and their results", True),
    "system": Field(_TEXT_OR_OBJECTS, "what goes before it"),
    "tools": Field(_OBJECTS, "functions that the model may call"),
    "tool_choice": Field(_OBJECT, "auto, any, none, or the one to call; enforced"),
    "thinking": Field(_OBJECT, "whether to think: enabled, adaptive or disabled", parts=("type",)),
    "output_config": Field(
        _OBJECT, "how much to think (`effort`), and a schema to follow (`format`)", parts=("effort", "format")
    ),
    "temperature": _PLAIN_OPTIONS["temperature"],
    "top_p": _PLAIN_OPTIONS["top_p"],
    "top_k": Field(_NUMBER, "keep that many of the most likely tokens"),
    "stop_sequences": Field(_TEXTS, "texts that end the answer"),
    "stream": Field(_FLAG, f"{_STREAM}, as server-sent events; false by default"),
    "thread": Field(
        _OBJECT, "`create` keeps the conversation, `continue` goes on from the answer `previous_message_id`"
    ),
    "compaction": Field({}, "not supported: an error where it is asked for"),
}
_RESPONSES: Fields = {
    **_MODEL,
    **_THINKING,
    **_PLAIN_OPTIONS,
    **_TOOLS,
    "input": Field(_TEXT_OR_OBJECTS, "a text, or items: messages, calls, their results, thinking", True),
    "instructions": Field(_TEXT, "a system message for this answer only"),
    "previous_response_id": Field(_TEXT, "the response to go on from; the last ones are kept in memory"),
    "store": Field(_FLAG, "whether later requests may go on from this one; true by default"),
    "max_output_tokens": Field(_WHOLE, "tokens of the answer at most"),
    "max_tool_calls": Field(_WHOLE, "taken, and of no effect: it counts tools that run on the server"),
    "metadata": Field(_OBJECT, "given back as it is"),
    **{
        name: Field(_TEXT, "given back as it is")
        for name in ("user", "prompt_cache_key", "safety_identifier")
    },
    "text": Field(
        _OBJECT, "`format`: text, json_object, or a json_schema that the answer follows", parts=("format",)
    ),
    "truncation": Field(_TEXT, "`auto` leaves out what does not fit; `disabled`, the default, refuses it"),
    "include": Field(_TEXTS, "`message.output_text.logprobs`"),
    "top_logprobs": Field(_WHOLE, "then: how many others beside each token, 0 to 20"),
    "stream": Field(_FLAG, f"{_STREAM}, as server-sent events; false by default"),
    **{
        name: Field({}, "not supported: an error where it is asked for")
        for name in ("background", "conversation", "prompt", "context_management")
    },
}
_PROGRESS = {"stream": Field(_FLAG, "whether every step is told, or only the last; true by default")}
_REGISTRY: Fields = {
    **_MODEL,
    **_NAME,
    **_PROGRESS,
    "insecure": Field(_FLAG, "plain HTTP is taken too"),
    "username": Field(_TEXT, "for registries that want one"),
    "password": Field(_TEXT, "for registries that want one"),
}

_RERANK: Fields = {
    **_MODEL,
    **_KEEP_ALIVE,
    "query": Field(_TEXT, "what the documents should answer", True),
    "documents": Field({}, "texts, or objects with a `text`", True),
    "top_n": Field(_WHOLE, "only so many, the best ones"),
    "return_documents": Field(_FLAG, "whether the texts are given back too; false by default"),
    "truncate": Field(_FLAG, "whether documents that are too long are cut, or refused; true by default"),
    "options": Field(_OBJECT, "options of loading"),
}

_ANY_MODEL = {"model": Field(_TEXT, "the name of a model; without one the model that was used last")}
_TOKEN_LIST = {"tokens": Field(_WHOLES, "the tokens", True)}
_TEXTS_TO_RANK: Fields = {
    "texts": Field(_TEXTS, "documents, for an answer as a list of `index` and `score`"),
    "return_text": Field(_FLAG, "with `texts`: whether they are given back too; false by default"),
    "raw_scores": Field(_FLAG, "with `texts`: not supported, an error where it is asked for"),
}
_CHAT: Fields = {
    **_OPENAI,
    **_TOOLS,
    "messages": Field(_OBJECTS, "the conversation", True),
    "logprobs": Field(_FLAG, "whether to tell the log-probability of each token"),
    "top_logprobs": Field(_WHOLE, "and of that many others in its place, 0 to 20"),
}

_INFILL: Fields = {
    **_ANY_MODEL,
    **_KEEP_ALIVE,
    "input_prefix": Field(_TEXT, "what comes before", True),
    "input_suffix": Field(_TEXT, "what comes behind", True),
    "prompt": Field(_TEXT, "what the part between begins with"),
    "n_predict": Field(_WHOLE, "tokens of the answer at most"),
    "n_keep": Field(_WHOLE, "the option num_keep"),
    "stop": _PLAIN_OPTIONS["stop"],
    "stream": Field(_FLAG, f"{_STREAM}, as server-sent events; false by default"),
    **{
        name: Field(_NUMBER, "the option of that name")
        for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "repeat_last_n")
    },
    **{
        name: Field(_NUMBER, "the option of that name")
        for name in ("repeat_penalty", "presence_penalty", "frequency_penalty")
    },
}

FIELDS: Mapping[tuple[str, str], Fields] = {
    ("POST", "/api/generate"): {
        **_NATIVE,
        "prompt": Field(_TEXT, "what to answer; without one the model is only loaded, or unloaded"),
        "suffix": Field(_TEXT, "what comes behind: the answer belongs between"),
        "system": Field(_TEXT, "instead of the model's system message"),
        "template": Field(_TEXT, "instead of the model's template, in Go's language"),
        "raw": Field(_FLAG, "no template: the prompt as it is"),
        "context": Field(_WHOLES, "tokens of an earlier answer to go on from"),
        "images": Field(_TEXTS, "images in base64"),
    },
    ("POST", "/api/chat"): {
        **_NATIVE,
        "messages": Field(_OBJECTS, "the conversation; without one the model is only loaded, or unloaded"),
        "tools": Field(_OBJECTS, "functions that the model may call"),
    },
    ("POST", "/api/embed"): {
        **_EMBED,
        "input": Field(_INPUTS, "texts, or lists of tokens"),
        "truncate": Field(_FLAG, "cut what is too long, instead of refusing it; true by default"),
        "dimensions": Field(_WHOLE, "keep that many, with a length of 1 again"),
    },
    ("POST", "/api/embeddings"): {**_EMBED, "prompt": Field(_TEXT, "one text")},
    ("POST", "/api/tokenize"): {
        **_MODEL,
        **_NAME,
        **_KEEP_ALIVE,
        "content": Field(_TEXT, "the text"),
        "text": Field(_TEXT, "the same"),
        "prompt": Field(_TEXT, "the same"),
    },
    ("POST", "/api/detokenize"): {
        **_MODEL,
        **_NAME,
        **_KEEP_ALIVE,
        "tokens": Field(_WHOLES, "the tokens", True),
    },
    ("POST", "/api/rerank"): _RERANK,
    ("POST", "/v1/rerank"): _RERANK,
    ("POST", "/api/show"): {
        **_MODEL,
        **_NAME,
        "verbose": Field(_FLAG, "long lists too"),
    },
    ("POST", "/api/copy"): {
        "source": Field(_TEXT, "the name of a model", True),
        "destination": Field(_TEXT, "its second name", True),
    },
    ("DELETE", "/api/delete"): {**_MODEL, **_NAME},
    ("POST", "/api/pull"): _REGISTRY,
    ("POST", "/api/push"): _REGISTRY,
    ("POST", "/api/create"): {
        **_MODEL,
        **_NAME,
        **_PROGRESS,
        "from": Field(_TEXT, "the model that it is made from"),
        "files": Field(_OBJECT, "or digests of blobs, by relative paths"),
        "template": Field(_TEXT, "how conversations are written, in Go's template language"),
        "system": Field(_TEXT, "a system message"),
        "parameters": Field(_OBJECT, "options that go without saying"),
        "messages": Field(_OBJECTS, "turns that every conversation begins with"),
        "license": Field(_TEXT_OR_TEXTS, "licenses"),
        "renderer": Field(_TEXT, "a named way of writing conversations"),
        "parser": Field(_TEXT, "a named way of reading answers"),
        "requires": Field(_TEXT, "the version of the server that it needs"),
        "quantize": Field(_TEXT, "the format that weights are brought to, such as q4_K_M"),
        "quantization": Field(_TEXT, "the same"),
        "draft_files": Field(
            _OBJECT, "the digest of a GGUF file with a model that guesses ahead, by its path"
        ),
        "draft_quantize": Field(_TEXT, "the format that its weights are brought to"),
        **{
            name: Field({}, "not supported: an error where it is asked for")
            for name in ("adapters", "remote_host", "info")
        },
    },
    ("POST", "/v1/chat/completions"): _CHAT,
    ("POST", "/apply-template"): {**_CHAT, **_ANY_MODEL},
    ("POST", "/tokenize"): {
        **_CHAT,
        **_ANY_MODEL,
        "messages": Field(_OBJECTS, "the conversation whose prompt is told"),
        "prompt": Field(_TEXT, "or a text"),
        "add_special_tokens": Field(
            _FLAG, "with `prompt`: with the tokens around every text; true by default"
        ),
        "return_token_strs": Field(_FLAG, "whether the texts of tokens are told; false by default"),
        "content": Field(_TEXT, "or a text, for an answer as llama.cpp's"),
        "add_special": Field(_FLAG, "with `content`: with the tokens around every text; false by default"),
        "parse_special": Field(_FLAG, "with `content`: control tokens are read as such; true by default"),
        "with_pieces": Field(_FLAG, "with `content`: whether the texts of tokens are told; false by default"),
    },
    ("POST", "/detokenize"): {**_ANY_MODEL, **_KEEP_ALIVE, **_TOKEN_LIST},
    ("POST", "/infill"): _INFILL,
    ("POST", "/rerank"): {
        **_RERANK,
        **_TEXTS_TO_RANK,
        "documents": Field({}, "texts, or objects with a `text`"),
    },
    ("POST", "/v2/rerank"): _RERANK,
    ("POST", "/v1/completions"): {
        **_OPENAI,
        "prompt": Field(
            _INPUTS, "what to answer: a text, or tokens as they are, or a list of these, at most 256", True
        ),
        "suffix": Field(_TEXT, "what comes behind: the answer belongs between"),
        "logprobs": Field(_WHOLE, "how many likely tokens to tell beside each one, 0 to 20"),
        "echo": Field(_FLAG, "give the prompt back before the answer, with its `logprobs`; it is raw then"),
        "prompt_logprobs": Field(
            _WHOLE, "tell how likely the tokens of the prompt were, and of that many others; it is raw then"
        ),
        "best_of": Field(_WHOLE, "the `n` answers are the most likely ones of that many, up to 16"),
        "raw": Field(_FLAG, "no template: the prompt as it is"),
    },
    ("POST", "/v1/embeddings"): {
        **_MODEL,
        **_TRUNCATE,
        "input": Field(_INPUTS, "texts, or lists of tokens", True),
        "dimensions": Field(_WHOLE, "keep that many, with a length of 1 again"),
        "encoding_format": Field(_TEXT, "`float`, or `base64` of little-endian float32"),
    },
    ("POST", "/v1/responses"): _RESPONSES,
    ("POST", "/v1/responses/input_tokens"): _RESPONSES,
    ("POST", "/v1/messages"): {
        **_MESSAGES,
        "max_tokens": Field(_WHOLE, "tokens of the answer at most", True),
    },
    ("POST", "/v1/messages/count_tokens"): _MESSAGES,
}
"""By method and path. What becomes of fields that are not here, `server/fields/audit.py` says."""
