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

_ANY_MODEL = {"model": Field(TEXT, "the name of a model; without one the model that was used last")}
_TOKEN_LIST = {"tokens": Field(WHOLES, "the tokens", True)}

_TEXTS_TO_RANK: FieldTable = {
    "texts": Field(TEXTS, "documents, for an answer as a list of `index` and `score`"),
    "return_text": Field(FLAG, "with `texts`: whether they are given back too; false by default"),
    "raw_scores": Field(FLAG, "with `texts`: not supported, an error where it is asked for"),
}

_LORA_NAME = {"lora_name": Field(TEXT, "the name that requests ask by, alone or as model:name", True)}
UNLOAD_ADAPTER: FieldTable = {
    **_LORA_NAME,
    "lora_int_id": Field(WHOLE, "vLLM's number of it, which is not needed"),
}
LOAD_ADAPTER: FieldTable = {
    **_LORA_NAME,
    "lora_path": Field(
        TEXT, "a GGUF file or a folder of PEFT, in the folder that CHASKI_ADAPTERS names", True
    ),
    "base_model_name": Field(TEXT, "the model that it was made for; by default the only one in memory"),
    "model": Field(TEXT, "the same"),
    "load_inplace": Field(FLAG, "whether it takes the place of one of that name; false by default"),
}
SET_SCALES: FieldTable = {
    "adapters": Field(
        OBJECTS, "the adapters to use, `id` and `scale` of each; the body may be this list", True, SCALES
    )
}

SLOT_FILE: FieldTable = {
    "filename": Field(TEXT, "to save and restore: the name of a file in the folder that CHASKI_STATES names"),
    "model": Field(TEXT, "the name of a model, as `?model=`; without one slots are counted as `/slots` does"),
}

INFILL: FieldTable = {
    **_ANY_MODEL,
    **KEEP_ALIVE,
    **LORA,
    "input_prefix": Field(TEXT, "what comes before", True),
    "input_suffix": Field(TEXT, "what comes behind", True),
    "prompt": Field(TEXT, "what the part between begins with"),
    **{option.infill: option_field(name) for name, option in OPTIONS.items() if option.infill},
    "stream": Field(FLAG, f"{STREAM}, as server-sent events; false by default"),
}

APPLY_TEMPLATE: FieldTable = {**CHAT, **_ANY_MODEL}

TOKENIZE: FieldTable = {
    **CHAT,
    **_ANY_MODEL,
    "messages": Field(OBJECTS, "the conversation that the template writes", parts=MESSAGES),
    "prompt": Field(TEXT, "or a text"),
    "add_special_tokens": Field(FLAG, "with `prompt`: with the tokens around every text; true by default"),
    "return_token_strs": Field(FLAG, "whether the reply has the texts of tokens; false by default"),
    "content": Field(TEXT, "or a text, for an answer as llama.cpp's"),
    "add_special": Field(FLAG, "with `content`: with the tokens around every text; false by default"),
    "parse_special": Field(FLAG, "with `content`: control tokens are read as such; true by default"),
    "with_pieces": Field(FLAG, "with `content`: whether the reply has the texts of tokens; false by default"),
}

DETOKENIZE: FieldTable = {**_ANY_MODEL, **KEEP_ALIVE, **_TOKEN_LIST}

RANK_TEXTS: FieldTable = {
    **RERANK,
    **_TEXTS_TO_RANK,
    "documents": Field({}, "texts, or objects with a `text`", parts=DOCUMENTS),
}
