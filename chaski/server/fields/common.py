"""Fields that requests of several APIs have."""

from __future__ import annotations

from chaski.server.fields.description import (
    FLAG,
    NUMBER,
    OBJECT,
    OBJECTS,
    TEXT,
    TEXT_OR_OBJECT,
    TEXT_OR_TEXTS,
    TEXTS,
    WHOLE,
    WHOLES,
    Field,
    FieldTable,
    reads,
)
from chaski.server.fields.unread import REFUSED
from chaski.server.service.options import KNOWN_OPTIONS
from chaski.store.parameters import DEPRECATED

__all__ = [
    "DOCUMENTS",
    "KEEP_ALIVE",
    "LORA",
    "MODEL",
    "NAME",
    "OPTIONS",
    "OPTION_NAMES",
    "PLAIN_OPTIONS",
    "RERANK",
    "SCALES",
    "STREAM",
    "THINKING",
    "TRUNCATE",
]

MODEL = {"model": Field(TEXT, "the name of a model: [host/][namespace/]model[:tag]", True)}
NAME = {"name": Field(TEXT, "the same as `model`, as older clients call it")}
KEEP_ALIVE = {
    "keep_alive": Field(
        {"oneOf": [TEXT, NUMBER]},
        "how long the model stays in memory after this: seconds or a duration such as 5m; below 0 for ever, "
        "0 not at all",
    )
}
SCALES = reads("id", "scale")
LORA = {
    "lora": Field(
        OBJECTS,
        "as in llama.cpp: the adapters to use, `id` and `scale` of each; see /lora-adapters",
        parts=SCALES,
    )
}
OPTION_NAMES = reads(*(KNOWN_OPTIONS | (DEPRECATED - REFUSED.keys())))
"""The options that are read, and those that Ollama itself does not read any more."""
OPTIONS = {
    "options": Field(
        OBJECT, "options of sampling and loading: num_ctx, temperature, seed, stop …", parts=OPTION_NAMES
    )
}
STREAM = "whether the answer comes in pieces"

TRUNCATE = {
    "truncate": Field(FLAG, "leave out what does not fit into the context; false refuses it. True by default")
}

_CONSTRAINTS: FieldTable = {
    "guided_json": Field(TEXT_OR_OBJECT, "as in vLLM: a JSON schema that the answer follows"),
    "guided_regex": Field(TEXT, "as in vLLM: a regular expression that the whole answer matches"),
    "guided_choice": Field(TEXTS, "as in vLLM: texts one of which is the answer"),
    "guided_grammar": Field(TEXT, "as in vLLM: a grammar in Lark or GBNF that the answer follows"),
    "structured_outputs": Field(
        OBJECT,
        "as in vLLM: one of `json`, `regex`, `choice`, `grammar`, `json_object`",
        parts=reads("json", "regex", "choice", "grammar", "json_object", "structural_tag"),
    ),
    "json_schema": Field(TEXT_OR_OBJECT, "as in llama.cpp: a JSON schema that the answer follows"),
    "grammar": Field(TEXT, "as in llama.cpp: a grammar in GBNF, or in Lark"),
}
_SAMPLING: FieldTable = {
    "min_tokens": Field(WHOLE, "tokens before which nothing ends the answer"),
    "no_store": Field(FLAG, "whether nothing of the request is kept on disk"),
    "ignore_eos": Field(FLAG, "whether the model's own ends are never chosen"),
    "stop_token_ids": Field(WHOLES, "tokens that end the answer as well"),
    "include_stop_str_in_output": Field(FLAG, "whether what ends the answer is part of it"),
    "bad_words": Field(TEXT_OR_TEXTS, "texts whose tokens the answer never completes"),
    "repetition_penalty": Field(NUMBER, "divides the logits of tokens of prompt and answer"),
    "dry_multiplier": Field(NUMBER, "lowers what would go on with a repetition; 0 is off"),
    "dry_base": Field(NUMBER, "how much more for longer ones; 1.75 by default"),
    "dry_allowed_length": Field(WHOLE, "repetitions shorter than this are free; 2 by default"),
    "dry_penalty_last_n": Field(WHOLE, "how many of the latest tokens are searched; below 0 all"),
    "dry_sequence_breakers": Field(TEXT_OR_TEXTS, "texts over which no repetition reaches"),
    "top_n_sigma": Field(NUMBER, "keep logits within so many standard deviations; 0 or less is off"),
    "xtc_probability": Field(NUMBER, "how often the top choices are excluded, 0 to 1"),
    "xtc_threshold": Field(NUMBER, "from which probability on; 0.1 by default"),
}
PLAIN_OPTIONS: FieldTable = {
    "temperature": Field(NUMBER, "divides the logits; 0 takes the most likely token; 1 by default"),
    "top_p": Field(NUMBER, "keep the most likely tokens up to this probability; 1 by default"),
    "seed": Field(WHOLE, "for a draw that can be repeated"),
    "frequency_penalty": Field(NUMBER, "lowers what came already, by how often it did"),
    "presence_penalty": Field(NUMBER, "lowers what came already"),
    "logit_bias": Field(OBJECT, "what is added to logits, -100 to 100 by token id"),
    "stop": Field(TEXT_OR_TEXTS, "texts that end the answer"),
    **OPTIONS,
    **_SAMPLING,
    **_CONSTRAINTS,
    **{
        name: Field(NUMBER, "the option of Ollama of that name")
        for name in ("top_k", "min_p", "num_ctx", "repeat_penalty", "repeat_last_n", "typical_p", "num_keep")
    },
}

THINKING: FieldTable = {
    "think": Field({"oneOf": [FLAG, TEXT]}, "whether to think, or how much; all that say it must agree"),
    "enable_thinking": Field(FLAG, "the same"),
    "reasoning_effort": Field(TEXT, "the same: none, minimal, low, medium, high, xhigh, max"),
    "reasoning": Field(
        OBJECT,
        "the same, as `effort` or `enabled`; replies have whole thoughts, whatever `summary` says",
        parts=reads("effort", "enabled", "summary", "generate_summary"),
    ),
    "chat_template_kwargs": Field(
        OBJECT,
        "the same, as `enable_thinking`, `thinking` or `reasoning_effort`; further variables of the template",
    ),
}

DOCUMENTS = reads("text")
RERANK: FieldTable = {
    **MODEL,
    **KEEP_ALIVE,
    "query": Field(TEXT, "what the documents should answer", True),
    "documents": Field({}, "texts, or objects with a `text`", True, DOCUMENTS),
    "top_n": Field(WHOLE, "only so many, the best ones"),
    "return_documents": Field(FLAG, "whether the texts are given back too; false by default"),
    "truncate": Field(FLAG, "whether documents that are too long are cut, or refused; true by default"),
    "options": Field(OBJECT, "options of loading", parts=OPTION_NAMES),
}
