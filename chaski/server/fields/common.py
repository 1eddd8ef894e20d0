"""Fields that requests of several APIs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.chat.options import KNOWN_OPTIONS
from chaski.options import FIELDS, OPTIONS, Kind, names_of
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
from chaski.store.parameters import DEPRECATED

__all__ = [
    "CONSTRAINTS",
    "DOCUMENTS",
    "KEEP_ALIVE",
    "LORA",
    "MODEL",
    "NAME",
    "OPTIONS_FIELD",
    "OPTION_NAMES",
    "PLAIN_OPTIONS",
    "RECEIPT",
    "RERANK",
    "SCALES",
    "STREAM",
    "THINKING",
    "TRUNCATE",
    "option_field",
]

MODEL = {"model": Field(TEXT, "the name of a model: [host/][namespace/]model[:tag]", True)}
NAME = {"name": Field(TEXT, "the same as `model`, under the name that older clients use")}
KEEP_ALIVE = {
    "keep_alive": Field(
        {"oneOf": [TEXT, NUMBER]},
        "how long the model stays in memory after the request: seconds, or a duration such as 5m; 0 unloads "
        "it at once, and a negative value keeps it forever",
    )
}
SCALES = reads("id", "scale")
LORA = {
    "lora": Field(
        OBJECTS,
        "as in llama.cpp: `id` and `scale` of each adapter to use; see /lora-adapters",
        parts=SCALES,
    )
}
OPTION_NAMES = reads(*(KNOWN_OPTIONS | (DEPRECATED - REFUSED.keys())))
"""The options that the server reads, and those that Ollama itself no longer reads."""
OPTIONS_FIELD = {
    "options": Field(
        OBJECT, "options for sampling and loading: num_ctx, temperature, seed, stop …", parts=OPTION_NAMES
    )
}
RECEIPT = {
    "receipt": Field(
        {"oneOf": [FLAG, OBJECT]},
        "whether the reply contains a receipt, by which others can verify the answer; or an object: `prompt` "
        "(`tokens`, or only their `digest`) and `top_logits` (0 to 20)",
        parts=reads("prompt", "top_logits"),
    )
}
STREAM = "whether the answer is sent in pieces"

TRUNCATE = {
    "truncate": Field(
        FLAG, "whether a prompt that does not fit is shortened instead of refused; true by default"
    )
}

CONSTRAINTS: FieldTable = {
    "guided_json": Field(TEXT_OR_OBJECT, "as in vLLM: a JSON schema that the answer follows"),
    "guided_regex": Field(TEXT, "as in vLLM: a regular expression that the whole answer matches"),
    "guided_choice": Field(TEXTS, "as in vLLM: texts, one of which is the answer"),
    "guided_grammar": Field(TEXT, "as in vLLM: a grammar in Lark or GBNF that the answer follows"),
    "structured_outputs": Field(
        OBJECT,
        "as in vLLM: one of `json`, `regex`, `choice`, `grammar`, `json_object`",
        parts=reads("json", "regex", "choice", "grammar", "json_object", "structural_tag"),
    ),
    "json_schema": Field(TEXT_OR_OBJECT, "as in llama.cpp: a JSON schema that the answer follows"),
    "grammar": Field(TEXT, "as in llama.cpp: a grammar in GBNF or Lark that the answer follows"),
}
_TYPES: Mapping[Kind, Mapping[str, Any]] = {
    Kind.INTEGER: WHOLE,
    Kind.NUMBER: NUMBER,
    Kind.FLAG: FLAG,
    Kind.TEXT: TEXT,
    Kind.TEXTS: TEXT_OR_TEXTS,
    Kind.TOKENS: WHOLES,
    Kind.OTHER: OBJECT,
}


def option_field(name: str) -> Field:
    """Return the description of an option as a field of the same name."""
    option = OPTIONS[name]
    return Field(_TYPES[option.kind], option.meaning)


PLAIN_OPTIONS: FieldTable = {
    **OPTIONS_FIELD,
    **{name: option_field(name) for name in names_of(FIELDS)},
    **RECEIPT,
    **CONSTRAINTS,
}

THINKING: FieldTable = {
    "think": Field(
        {"oneOf": [FLAG, TEXT]}, "whether to think, or the effort; all fields that set it must agree"
    ),
    "enable_thinking": Field(FLAG, "the same as `think`"),
    "reasoning_effort": Field(TEXT, "the same as `think`: none, minimal, low, medium, high, xhigh, max"),
    "reasoning": Field(
        OBJECT,
        "the same as `think`, in `effort` or `enabled`, and as `reasoning_budget`, in `max_tokens`; replies "
        "always contain the full thinking",
        parts=reads("effort", "enabled", "max_tokens", "summary", "generate_summary"),
    ),
    "reasoning_budget": option_field("reasoning_budget"),
    "reasoning_budget_message": option_field("reasoning_budget_message"),
    "thinking_token_budget": Field(WHOLE, "as in vLLM: the same as `reasoning_budget`"),
    "thinking_budget_tokens": Field(WHOLE, "as in llama.cpp: the same as `reasoning_budget`"),
    "reasoning_budget_tokens": Field(WHOLE, "as in llama.cpp: the same as `reasoning_budget`"),
    "thinking_budget": Field(WHOLE, "as in Alibaba's API: the same as `reasoning_budget`"),
    "chat_template_kwargs": Field(
        OBJECT,
        "variables of the template; `enable_thinking`, `thinking` and `reasoning_effort` work like `think`",
    ),
}

DOCUMENTS = reads("text")
RERANK: FieldTable = {
    **MODEL,
    **KEEP_ALIVE,
    "query": Field(TEXT, "the query that the documents should answer", True),
    "documents": Field({}, "texts, or objects with a `text`", True, DOCUMENTS),
    "top_n": Field(WHOLE, "number of documents to return, the best ones first"),
    "return_documents": Field(FLAG, "whether the reply contains the texts; false by default"),
    "truncate": Field(
        FLAG, "whether documents that are too long are cut instead of refused; true by default"
    ),
    "options": Field(OBJECT, "options for loading the model", parts=OPTION_NAMES),
}
