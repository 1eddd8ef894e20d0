"""Requests of OpenAI's API, read into wishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.durations import parse_duration
from chaski.errors import OptionError
from chaski.server.dialects.constraints import read_constraint, sampling_options
from chaski.server.dialects.ignored import Ignored
from chaski.server.dialects.images import check_images
from chaski.server.dialects.openai.conversation import Conversation, chosen, custom_names, read_tools
from chaski.server.dialects.thinking import agreed, read_thinking, template_variables
from chaski.server.fields import Fields
from chaski.server.wishes import ChatWish, EmbedWish, GenerateWish

__all__ = [
    "includes_usage",
    "read_chat",
    "read_completion",
    "read_count",
    "read_embeddings",
    "read_options",
    "schema_in",
    "top_of",
]

MAX_ANSWERS = 16
# Options of Ollama that people need and this API has no name for are taken under their own names.
_PLAIN_OPTIONS = ("top_k", "min_p", "num_ctx", "repeat_penalty", "repeat_last_n", "typical_p", "num_keep")
# The number that says of `num_predict` what llama.cpp says by -1 of `max_tokens`.
_TO_THE_END = -2
_PLAIN_OPTIONS_OF_OPENAI = ("seed", "frequency_penalty", "presence_penalty")


def read_chat(body: Mapping[str, Any]) -> ChatWish:
    """A request of /v1/chat/completions. Raises OptionError or UnsupportedError."""
    fields = Fields(body)
    ignored = Ignored()
    messages = Conversation(fields, ignored).messages
    if not messages:
        raise OptionError("[] is too short - 'messages'")
    check_images(messages)
    choice, allowed = chosen(fields.data.get("tool_choice"))
    tools = list(read_tools(fields, ignored))
    return ChatWish(
        messages=messages,
        tools=[tool for tool in tools if allowed is None or tool["function"].get("name") in allowed],
        custom_tools=custom_names(fields),
        ignored=tuple(ignored),
        tool_choice=choice,
        parallel_calls=fields.flag("parallel_tool_calls", True),
        drops_think=True,
        logprobs=fields.flag("logprobs", False),
        top_logprobs=top_of(fields.integer("top_logprobs", 0)),
        **_common(fields),
    )


def read_completion(body: Mapping[str, Any]) -> GenerateWish:
    """A request of /v1/completions. The prompt goes through the model's template, as in Ollama."""
    fields = Fields(body)
    top = fields.integer("logprobs", None)
    return GenerateWish(
        prompt=fields.text("prompt"),
        suffix=fields.text("suffix"),
        logprobs=top is not None,
        top_logprobs=top_of(top or 0),
        **_common(fields),
    )


def read_count(body: Mapping[str, Any]) -> int:
    """How many answers are wanted. Raises OptionError."""
    count: int = Fields(body).integer("n", 1)
    if not 1 <= count <= MAX_ANSWERS:
        raise OptionError(f"n must be 1 to {MAX_ANSWERS}")
    return count


def read_embeddings(body: Mapping[str, Any]) -> tuple[EmbedWish, bool]:
    """A request of /v1/embeddings, and whether vectors are wanted in base64."""
    from chaski.server.dialects.ollama import read_inputs

    fields = Fields(body)
    encoding = fields.text("encoding_format", default="float")
    if encoding not in ("float", "base64"):
        raise OptionError(
            f"Invalid value for 'encoding_format' = {encoding:.40}. Supported values: ['float', 'base64']."
        )
    inputs = read_inputs(fields, "input")
    if not inputs:
        raise OptionError("invalid input")
    dimensions = fields.integer("dimensions", None)
    if dimensions is not None and dimensions < 1:
        raise OptionError("dimensions must be at least 1")
    truncate = fields.flag("truncate", True)
    wish = EmbedWish(model=fields.text("model"), inputs=inputs, dimensions=dimensions, truncate=truncate)
    return wish, encoding == "base64"


def includes_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream ends with counts."""
    return Fields(Fields(body).mapping("stream_options"), "stream_options").flag("include_usage", False)


def _common(fields: Fields) -> dict[str, Any]:
    format = _format(Fields(fields.mapping("response_format"), "response_format"))
    constrained = read_constraint(fields, "response_format", format)
    options = read_options(fields, "max_completion_tokens", "max_tokens")
    return {
        "model": fields.text("model"),
        "options": {**options, **constrained.options},
        "stream": fields.flag("stream", False),
        "format": constrained.format,
        "keep_alive": parse_duration(fields.data["keep_alive"]) if fields.has("keep_alive") else None,
        "truncate": fields.flag("truncate", True),
        "think": agreed(read_thinking(fields)),
        "template_variables": template_variables(fields),
    }


def read_options(fields: Fields, *limits: str) -> dict[str, Any]:
    """The options of a request, in Ollama's names. limits: where the most tokens of an answer may stand."""
    options = dict(fields.mapping("options"))
    names = (*_PLAIN_OPTIONS, *_PLAIN_OPTIONS_OF_OPENAI)
    options |= {name: fields.number(name, None) for name in names if fields.has(name)}
    options |= {name: fields.number(name, 1.0) for name in ("temperature", "top_p")}
    options |= sampling_options(fields)
    name = next((name for name in limits if fields.has(name)), None)
    if name is not None:
        limit = fields.integer(name, 0)
        if limit < -1:
            raise OptionError(f"{name} must be at least 0, or -1 for as many as the context holds")
        options["num_predict"] = limit if limit >= 0 else _TO_THE_END
    if bias := fields.mapping("logit_bias"):
        options["logit_bias"] = dict(bias)
    if stops := fields.texts("stop"):
        options["stop"] = stops
    return options


def _format(fields: Fields) -> Any:
    kind = fields.text("type", default="text")
    if kind == "text":
        return None
    if kind == "json_object":
        return "json"
    if kind == "json_schema":
        return schema_in(Fields(fields.mapping("json_schema"), "response_format.json_schema"))
    raise OptionError(f"response_format.type {kind!r:.40} must be text, json_object or json_schema")


def schema_in(fields: Fields) -> Mapping[str, Any]:
    """The schema that an answer must follow."""
    schema = fields.mapping("schema")
    if not schema:
        raise OptionError(f"{fields.where}.schema is missing")
    return schema


def top_of(count: int) -> int:
    """How many tokens are shown beside each one."""
    if not 0 <= count <= 20:
        raise OptionError("top_logprobs must be between 0 and 20")
    return count
