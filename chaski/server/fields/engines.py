"""Fields of the routes of llama.cpp's server, vLLM and Cohere."""

from __future__ import annotations

from chaski.options import OPTIONS
from chaski.server.fields.common import DOCUMENTS, KEEP_ALIVE, LORA, RERANK, SCALES, STREAM, option_field
from chaski.server.fields.description import (
    FLAG,
    OBJECTS,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLES,
    Field,
    FieldTable,
)
from chaski.server.fields.openai import CHAT, MESSAGES

__all__ = [
    "APPLY_TEMPLATE",
    "DETOKENIZE",
    "INFILL",
    "LOAD_ADAPTER",
    "RANK_TEXTS",
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

INFILL: FieldTable = {
    **_ANY_MODEL,
    **KEEP_ALIVE,
    **LORA,
    "input_prefix": Field(TEXT, "the text before the gap", True),
    "input_suffix": Field(TEXT, "the text after the gap", True),
    "prompt": Field(TEXT, "the beginning of the text in the gap"),
    **{option.infill: option_field(name) for name, option in OPTIONS.items() if option.infill},
    "stream": Field(FLAG, f"{STREAM}, as server-sent events; false by default"),
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
