"""Fields of Ollama's API."""

from __future__ import annotations

from chaski.server.fields.common import KEEP_ALIVE, MODEL, NAME, OPTION_NAMES, OPTIONS_FIELD, STREAM
from chaski.server.fields.description import (
    FLAG,
    INPUTS,
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

__all__ = [
    "CHAT",
    "COPY",
    "CREATE",
    "DELETE",
    "DETOKENIZE",
    "DRAIN",
    "EMBED_TEXT",
    "EMBED_TEXTS",
    "GENERATE",
    "KEEP_STATE",
    "MEMORY",
    "REGISTRY",
    "REPLACE",
    "SHOW",
    "TOKENIZE",
]

_NATIVE: FieldTable = {
    **MODEL,
    **NAME,
    **OPTIONS_FIELD,
    **KEEP_ALIVE,
    "stream": Field(FLAG, f"{STREAM}, one JSON object a line; true by default"),
    "truncate": Field(FLAG, "leave out what does not fit into the context, and say so; true by default"),
    "shift": Field(FLAG, "forget half when the context is full, instead of ending; true by default"),
    "think": Field({"oneOf": [FLAG, TEXT]}, "whether to think, or how much: low, medium, high, max"),
    "format": Field(TEXT_OR_OBJECT, "`json`, or a JSON schema that the answer follows"),
    "logprobs": Field(FLAG, "whether to tell the log-probability of each token"),
    "top_logprobs": Field(WHOLE, "and of that many others in its place, 0 to 20"),
}

_EMBED: FieldTable = {
    **MODEL,
    **NAME,
    **OPTIONS_FIELD,
    **KEEP_ALIVE,
}

_PROGRESS = {"stream": Field(FLAG, "whether the reply has every step, or only the last; true by default")}
DRAIN: FieldTable = {"node": Field(TEXT, "its name or its address"), **_PROGRESS}
REPLACE: FieldTable = {**MODEL, **NAME, **_PROGRESS}

REGISTRY: FieldTable = {
    **MODEL,
    **NAME,
    **_PROGRESS,
    "insecure": Field(FLAG, "plain HTTP is taken too"),
    "username": Field(TEXT, "for registries that want one"),
    "password": Field(TEXT, "for registries that want one"),
}

GENERATE: FieldTable = {
    **_NATIVE,
    "prompt": Field(TEXT, "what to answer; without one the model is only loaded, or unloaded"),
    "suffix": Field(TEXT, "what comes behind: the answer belongs between"),
    "system": Field(TEXT, "instead of the model's system message"),
    "template": Field(TEXT, "instead of the model's template, in Go's language"),
    "raw": Field(FLAG, "no template: the prompt as it is"),
    "context": Field(WHOLES, "tokens of an earlier answer to go on from"),
    "images": Field(TEXTS, "images in base64"),
}

# Clients send back the `index` that calls in answers have.
_CALLS = reads("id", "type", function=reads("name", "arguments", "index"))
_MESSAGES = reads(*("role", "content", "thinking", "tool_name", "tool_call_id", "images"), tool_calls=_CALLS)
CHAT: FieldTable = {
    **_NATIVE,
    "messages": Field(
        OBJECTS, "the conversation; without one the model is only loaded, or unloaded", parts=_MESSAGES
    ),
    "tools": Field(OBJECTS, "functions that the model may call"),
    "answer_prefix": Field(TEXT, "what the answer begins with; it goes on from there, and has it too"),
    "answer_id": Field(
        TEXT,
        "random letters by which `/api/answers/{id}` gives the answer again; it goes on without its client",
    ),
}

EMBED_TEXTS: FieldTable = {
    **_EMBED,
    "input": Field(INPUTS, "texts, or lists of tokens"),
    "truncate": Field(FLAG, "cut what is too long, instead of refusing it; true by default"),
    "dimensions": Field(WHOLE, "keep that many, with a length of 1 again"),
}

EMBED_TEXT: FieldTable = {**_EMBED, "prompt": Field(TEXT, "one text")}

TOKENIZE: FieldTable = {
    **MODEL,
    **NAME,
    **KEEP_ALIVE,
    "content": Field(TEXT, "the text"),
    "text": Field(TEXT, "the same"),
    "prompt": Field(TEXT, "the same"),
}

DETOKENIZE: FieldTable = {
    **MODEL,
    **NAME,
    **KEEP_ALIVE,
    "tokens": Field(WHOLES, "the tokens", True),
}

SHOW: FieldTable = {
    **MODEL,
    **NAME,
    "verbose": Field(FLAG, "long lists too"),
}

MEMORY: FieldTable = {
    **MODEL,
    **NAME,
    "num_ctx": Field(WHOLE, "tokens of a sequence; as it is loaded by default"),
    "parallel": Field(WHOLE, "sequences that are computed together; as it is loaded by default"),
}

COPY: FieldTable = {
    "source": Field(TEXT, "the name of a model", True),
    "destination": Field(TEXT, "its second name", True),
}

KEEP_STATE: FieldTable = {**MODEL, **NAME, "think": _NATIVE["think"]}

DELETE: FieldTable = {**MODEL, **NAME}

CREATE: FieldTable = {
    **MODEL,
    **NAME,
    **_PROGRESS,
    "from": Field(TEXT, "the model that it is made from"),
    "files": Field(OBJECT, "or digests of blobs, by relative paths"),
    "template": Field(TEXT, "how conversations are written, in Go's template language"),
    "system": Field(TEXT, "a system message"),
    "parameters": Field(OBJECT, "options that go without saying", parts=OPTION_NAMES),
    "messages": Field(OBJECTS, "turns that every conversation begins with", parts=reads("role", "content")),
    "license": Field(TEXT_OR_TEXTS, "licenses"),
    "renderer": Field(TEXT, "a named way of writing conversations"),
    "parser": Field(TEXT, "a named way of reading answers"),
    "requires": Field(TEXT, "the version of the server that it needs"),
    "quantize": Field(TEXT, "the format that weights are brought to, such as q4_K_M"),
    "quantization": Field(TEXT, "the same"),
    "adapters": Field(
        OBJECT, "digests of GGUF adapters, or of the files of PEFT's folders, by relative paths"
    ),
    "draft_files": Field(OBJECT, "the digest of a GGUF file with a draft model, by its path"),
    "draft_quantize": Field(TEXT, "the format that its weights are brought to"),
    **{name: Field({}, "not supported: an error where it is asked for") for name in ("remote_host", "info")},
}
