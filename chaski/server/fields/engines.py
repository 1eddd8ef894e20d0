"""Fields of the routes of llama.cpp's server, vLLM and Cohere."""

from __future__ import annotations

from chaski.options import OPTIONS
from chaski.server.fields.common import (
    CONSTRAINTS,
    DOCUMENTS,
    KEEP_ALIVE,
    LORA,
    MODEL,
    RERANK,
    SCALES,
    STREAM,
    TRUNCATE,
    option_field,
)
from chaski.server.fields.description import (
    FLAG,
    INPUTS,
    OBJECTS,
    TEXT,
    TEXT_OR_TEXTS,
    TEXTS,
    WHOLE,
    WHOLES,
    Field,
    FieldTable,
    reads,
)
from chaski.server.fields.openai import CHAT, MESSAGES

__all__ = [
    "APPLY_TEMPLATE",
    "COMPLETION",
    "DETOKENIZE",
    "EMBEDDING",
    "INFILL",
    "LOAD_ADAPTER",
    "RANK_TEXTS",
    "SCORE",
    "SET_SCALES",
    "SLOT_FILE",
    "TOKENIZE",
    "UNLOAD_ADAPTER",
]

_ANY_MODEL = {"model": Field(TEXT, "the name of a model; by default the model that was used last")}
_TOKEN_LIST = {"tokens": Field(WHOLES, "the tokens", True)}

_TEXTS_TO_RANK: FieldTable = {
    "texts": Field(TEXTS, "documents; the reply is then a list of `index` and `score`"),
    "return_text": Field(FLAG, "with `texts`: whether the reply contains them; false by default"),
    "raw_scores": Field(FLAG, "with `texts`: not supported; true is an error"),
}

_LORA_NAME = {
    "lora_name": Field(TEXT, "the name under which requests use the adapter, alone or as model:name", True)
}
UNLOAD_ADAPTER: FieldTable = {
    **_LORA_NAME,
    "lora_int_id": Field(WHOLE, "vLLM's number of the adapter, which has no effect"),
}
LOAD_ADAPTER: FieldTable = {
    **_LORA_NAME,
    "lora_path": Field(TEXT, "a GGUF file or a PEFT folder, in the folder that CHASKI_ADAPTERS names", True),
    "base_model_name": Field(TEXT, "the adapter's model; by default the only one in memory"),
    "model": Field(TEXT, "the same as `base_model_name`"),
    "load_inplace": Field(FLAG, "whether to replace an adapter of the same name; false by default"),
}
SET_SCALES: FieldTable = {
    "adapters": Field(
        OBJECTS, "`id` and `scale` of each adapter to use; the body may be this list", True, SCALES
    )
}

SLOT_FILE: FieldTable = {
    "filename": Field(
        TEXT, "for save and restore: the name of a file in the folder that CHASKI_STATES names"
    ),
    "model": Field(TEXT, "the name of a model, as `?model=`; without it, slots are numbered as in `/slots`"),
}

_ANSWERED: FieldTable = {
    **_ANY_MODEL,
    **KEEP_ALIVE,
    **LORA,
    **CONSTRAINTS,
    **{option.llama_cpp: option_field(name) for name, option in OPTIONS.items() if option.llama_cpp},
    "logit_bias": Field({}, "numbers by token id, as an object or as a list of pairs; false bans a token"),
    "max_tokens": Field(WHOLE, "the same as `n_predict`"),
    "max_completion_tokens": Field(WHOLE, "the same as `n_predict`"),
    "n_probs": Field(WHOLE, "number of most likely tokens to report with each token, 0 to 20"),
    "return_tokens": Field(FLAG, "whether the reply contains the tokens of the answer; streams always do"),
    "response_fields": Field(TEXTS, "the fields of the reply; `a/b` takes `b` out of `a`; by default all"),
    "stream": Field(FLAG, f"{STREAM}, as server-sent events; false by default"),
}
COMPLETION: FieldTable = {
    **_ANSWERED,
    "prompt": Field(
        {},
        "the prompt as it is: a text, a list of tokens and texts, an object with `prompt_string` and images "
        "in `multimodal_data`, or a list of at most 256 of these",
        True,
        reads("prompt_string", "multimodal_data"),
    ),
    "n_cmpl": Field(WHOLE, "number of answers to each prompt, 1 to 16; several answers are a list"),
    "n": Field(WHOLE, "the same as `n_cmpl`"),
}
EMBEDDING: FieldTable = {
    **_ANY_MODEL,
    **KEEP_ALIVE,
    **TRUNCATE,
    "content": Field(INPUTS, "texts, or lists of tokens", True),
    "input": Field(INPUTS, "the same as `content`"),
    "embd_normalize": Field(
        WHOLE,
        "norm that the vectors are divided by: -1 for none, 0 for the maximum, 1, 2 (the default) or higher",
    ),
}
INFILL: FieldTable = {
    **_ANSWERED,
    "input_prefix": Field(TEXT, "the text before the gap", True),
    "input_suffix": Field(TEXT, "the text after the gap", True),
    "prompt": Field(TEXT, "the beginning of the text in the gap"),
}

APPLY_TEMPLATE: FieldTable = {**CHAT, **_ANY_MODEL}

TOKENIZE: FieldTable = {
    **CHAT,
    **_ANY_MODEL,
    "messages": Field(OBJECTS, "a conversation, which the model's template renders", parts=MESSAGES),
    "prompt": Field(TEXT, "a text, for a reply in vLLM's form"),
    "add_special_tokens": Field(
        FLAG, "with `prompt`: whether to add the tokens that begin and end every text; true by default"
    ),
    "return_token_strs": Field(FLAG, "whether the reply contains the texts of tokens; false by default"),
    "content": Field(TEXT, "a text, for a reply in llama.cpp's form"),
    "add_special": Field(
        FLAG, "with `content`: whether to add the tokens that begin and end every text; false by default"
    ),
    "parse_special": Field(FLAG, "with `content`: whether to recognize control tokens; true by default"),
    "with_pieces": Field(
        FLAG, "with `content`: whether the reply contains the texts of tokens; false by default"
    ),
}

DETOKENIZE: FieldTable = {**_ANY_MODEL, **KEEP_ALIVE, **_TOKEN_LIST}

RANK_TEXTS: FieldTable = {
    **RERANK,
    **_TEXTS_TO_RANK,
    "documents": Field({}, "texts, or objects with a `text`", parts=DOCUMENTS),
}

SCORE: FieldTable = {
    **MODEL,
    **KEEP_ALIVE,
    **TRUNCATE,
    "text_1": Field(TEXT_OR_TEXTS, "the query, or one for each text of `text_2`", True),
    "text_2": Field(TEXT_OR_TEXTS, "the texts that are scored", True),
    "queries": Field(TEXT_OR_TEXTS, "the same as `text_1`"),
    "documents": Field(TEXT_OR_TEXTS, "the same as `text_2`"),
}
