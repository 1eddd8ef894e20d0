"""Fields of Ollama's API."""

from __future__ import annotations

from chaski.server.fields.common import KEEP_ALIVE, MODEL, NAME, OPTION_NAMES, OPTIONS_FIELD, RECEIPT, STREAM
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
    "PASTED",
    "REGISTRY",
    "REMOVE",
    "REPLACE",
    "SHOW",
    "TOKENIZE",
]

_NATIVE: FieldTable = {
    **MODEL,
    **NAME,
    **OPTIONS_FIELD,
    **KEEP_ALIVE,
    "stream": Field(FLAG, f"{STREAM}, one JSON object per line; true by default"),
    "truncate": Field(
        FLAG, "whether a prompt that does not fit is shortened, which the reply reports; true by default"
    ),
    "shift": Field(FLAG, "whether to drop half of a full context instead of ending; true by default"),
    "think": Field({"oneOf": [FLAG, TEXT]}, "whether to think, or the effort: low, medium, high, max"),
    "format": Field(TEXT_OR_OBJECT, "`json`, or a JSON schema that the answer follows"),
    "logprobs": Field(FLAG, "whether the reply contains the log-probability of each token"),
    "top_logprobs": Field(WHOLE, "number of most likely tokens to report at each position, 0 to 20"),
    **RECEIPT,
}

_EMBED: FieldTable = {
    **MODEL,
    **NAME,
    **OPTIONS_FIELD,
    **KEEP_ALIVE,
}

_PROGRESS = {
    "stream": Field(
        FLAG, "whether the reply contains every step instead of only the last one; true by default"
    )
}
DRAIN: FieldTable = {"node": Field(TEXT, "the name or the address of the node"), **_PROGRESS}
REMOVE: FieldTable = {"application": Field(TEXT, "the name of an application that no server wants")}
REPLACE: FieldTable = {**MODEL, **NAME, **_PROGRESS}

REGISTRY: FieldTable = {
    **MODEL,
    **NAME,
    **_PROGRESS,
    "insecure": Field(FLAG, "whether plain HTTP is allowed"),
    "username": Field(TEXT, "user name, for registries that require one"),
    "password": Field(TEXT, "password, for registries that require one"),
}

GENERATE: FieldTable = {
    **_NATIVE,
    "prompt": Field(TEXT, "the prompt to answer; without one, the model is only loaded or unloaded"),
    "suffix": Field(TEXT, "text after the gap that the answer fills"),
    "system": Field(TEXT, "replaces the model's system message"),
    "template": Field(TEXT, "replaces the model's template, in Go's template language"),
    "raw": Field(FLAG, "whether to use the prompt as it is, without a template"),
    "context": Field(WHOLES, "tokens of an earlier answer to continue from"),
    "images": Field(TEXTS, "images in base64"),
}

# Clients send back the `index` of calls in answers.
_CALLS = reads("id", "type", function=reads("name", "arguments", "index"))
_MESSAGES = reads(*("role", "content", "thinking", "tool_name", "tool_call_id", "images"), tool_calls=_CALLS)
CHAT: FieldTable = {
    **_NATIVE,
    "messages": Field(
        OBJECTS, "the conversation; without one, the model is only loaded or unloaded", parts=_MESSAGES
    ),
    "tools": Field(OBJECTS, "functions that the model may call"),
    "answer_prefix": Field(TEXT, "text with which the answer begins, and which the model continues"),
    "answer_id": Field(
        TEXT,
        "random id under which `/api/answers/{id}` returns the answer, even after its client disconnected",
    ),
}

EMBED_TEXTS: FieldTable = {
    **_EMBED,
    "input": Field(INPUTS, "texts, or lists of tokens"),
    "truncate": Field(FLAG, "whether texts that are too long are cut instead of refused; true by default"),
    "dimensions": Field(WHOLE, "number of values to keep of each vector, which is then normalized again"),
}

EMBED_TEXT: FieldTable = {**_EMBED, "prompt": Field(TEXT, "one text")}

TOKENIZE: FieldTable = {
    **MODEL,
    **NAME,
    **KEEP_ALIVE,
    "content": Field(TEXT, "the text"),
    "text": Field(TEXT, "the same as `content`"),
    "prompt": Field(TEXT, "the same as `content`"),
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
    "verbose": Field(FLAG, "whether the reply contains long lists too"),
}

MEMORY: FieldTable = {
    **MODEL,
    **NAME,
    "num_ctx": Field(WHOLE, "context length in tokens; by default as the server would load the model"),
    "parallel": Field(WHOLE, "sequences computed together; by default as many as the server allows"),
}

PASTED: FieldTable = {"text": Field(TEXT, "a name, a command such as `ollama run NAME`, or a link", True)}

COPY: FieldTable = {
    "source": Field(TEXT, "the name of a model", True),
    "destination": Field(TEXT, "the new name", True),
}

KEEP_STATE: FieldTable = {**MODEL, **NAME, "think": _NATIVE["think"]}

DELETE: FieldTable = {**MODEL, **NAME}

CREATE: FieldTable = {
    **MODEL,
    **NAME,
    **_PROGRESS,
    "from": Field(TEXT, "the model to create it from"),
    "files": Field(OBJECT, "digests of blobs by relative paths, instead of `from`"),
    "template": Field(TEXT, "the template of conversations, in Go's template language"),
    "system": Field(TEXT, "a system message"),
    "parameters": Field(OBJECT, "default options of requests", parts=OPTION_NAMES),
    "messages": Field(OBJECTS, "messages that begin every conversation", parts=reads("role", "content")),
    "license": Field(TEXT_OR_TEXTS, "licenses"),
    "renderer": Field(TEXT, "name of a built-in format for writing conversations"),
    "parser": Field(TEXT, "name of a built-in format for reading answers"),
    "requires": Field(TEXT, "the version of the server that the model requires"),
    "quantize": Field(TEXT, "format to which the weights are quantized, such as q4_K_M"),
    "quantization": Field(TEXT, "the same as `quantize`"),
    "adapters": Field(OBJECT, "digests of GGUF adapters, or of the files of PEFT folders, by relative paths"),
    "draft_files": Field(OBJECT, "the digest of a GGUF file with a draft model, by its path"),
    "draft_quantize": Field(TEXT, "format to which the draft model's weights are quantized"),
    **{name: Field({}, "not supported; requests that set it fail") for name in ("remote_host", "info")},
}
