"""Conversion of the bodies of OpenAI's API to requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from chaski.chat.beams import is_search
from chaski.durations import parse_duration
from chaski.errors import OptionError
from chaski.options import FIELDS, MAX_TOP_LOGPROBS, OPTIONS, names_of
from chaski.server.answering.requests import ChatRequest, EmbedRequest, GenerateRequest
from chaski.server.answering.several import MAX_ANSWERS
from chaski.server.dialects.common.constraints import read_constraint
from chaski.server.dialects.common.images import check_images
from chaski.server.dialects.common.sizes import MAX_PROMPTS, require_sendable
from chaski.server.dialects.common.thinking import agreed, read_budget, read_thinking, template_variables
from chaski.server.dialects.common.tools import require_distinct
from chaski.server.dialects.llamacpp.lora import read_lora
from chaski.server.dialects.openai.conversation import OpenAIConversation, chosen, custom_names, read_tools
from chaski.server.fields.ignored import Ignored
from chaski.server.fields.reader import Fields

__all__ = [
    "CompletionRequest",
    "includes_usage",
    "limit_of",
    "read_chat",
    "read_completion",
    "read_count",
    "read_embeddings",
    "read_options",
    "schema_in",
    "top_of",
]

_PROMPTS = "a string, a list of strings, a list of tokens, or a list of such lists"
# Options that OpenAI's API does not define are accepted under their own names.
_FIELDS = {name: name for name in names_of(FIELDS)}
_USUAL = {name: option.openai for name, option in OPTIONS.items() if option.openai is not None}
# Fields that limit the tokens of an answer. The first one takes precedence.
_LIMITS = ("max_completion_tokens", "max_tokens")
# The value of `num_predict` that means the same as -1 of llama.cpp's `max_tokens`.
_TO_THE_END = -2


class CompletionRequest(Struct, frozen=True):
    """A request of /v1/completions.

    prompts       one request for each prompt; the requests differ in nothing else
    count         number of answers to each prompt, which are the best ones of `best_of`
    has_logprobs  whether the reply contains the scores of the answer, and of the prompt if it is echoed
    has_prompt_logprobs  whether the reply contains the scores of the prompt in a separate field
    """

    prompts: Sequence[GenerateRequest]
    count: int
    best_of: int
    has_logprobs: bool
    has_prompt_logprobs: bool

    @property
    def model(self) -> str:
        return self.prompts[0].model

    @property
    def echoes(self) -> bool:
        """True if each answer begins with its prompt."""
        return self.prompts[0].echoes


def read_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request of /v1/chat/completions. Raises OptionError or UnsupportedError."""
    fields = Fields(body)
    ignored = Ignored()
    messages = OpenAIConversation(fields, ignored).messages
    if not messages:
        raise OptionError("[] is too short - 'messages'")
    check_images(messages)
    _check_continuing(fields, is_begun=messages[-1]["role"] == "assistant")
    require_sendable(fields, read_count(body))
    choice, allowed = chosen(fields.data.get("tool_choice"))
    tools = list(read_tools(fields, ignored))
    require_distinct(tools)
    return ChatRequest(
        messages=messages,
        tools=[tool for tool in tools if allowed is None or tool["function"].get("name") in allowed],
        custom_tools=custom_names(fields),
        ignored=tuple(ignored),
        tool_choice=choice,
        parallel_calls=fields.flag("parallel_tool_calls", True),
        drops_think=True,
        logprobs=fields.flag("logprobs", False),
        top_logprobs=_chat_top(fields),
        prompt_logprobs=_chat_prompt_top(fields),
        **_common(fields, read_count(body)),
    )


def _chat_top(fields: Fields) -> int:
    top = top_of(fields.integer("top_logprobs", 0))
    if top and not fields.flag("logprobs", False):
        raise OptionError("top_logprobs requires logprobs; set logprobs to true")
    return top


def _check_continuing(fields: Fields, is_begun: bool) -> None:
    """Raise OptionError if the request would continue a message that is not the assistant's."""
    if is_begun:
        return
    if fields.flag("continue_final_message", False):
        raise OptionError(
            "continue_final_message is true, but the last message is not the assistant's; leave it out, "
            "or end the conversation with the beginning of the answer"
        )
    if not fields.flag("add_generation_prompt", True):
        raise OptionError(
            "add_generation_prompt is false, but the last message is not the assistant's; leave it out"
        )


def read_completion(body: Mapping[str, Any]) -> CompletionRequest:
    """Read a request of /v1/completions. Raises OptionError.

    As in Ollama, a text is inserted into the model's template, unless it is raw. Prompts of tokens, and
    prompts that are echoed or scored, are always raw.
    """
    fields = Fields(body)
    prompts = _prompts(fields.data.get("prompt"))
    suffix, echoes = fields.text("suffix"), fields.flag("echo", False)
    count, best_of = _read_counts(fields)
    require_sendable(fields, best_of, len(prompts))
    num_searched = best_of
    if fields.flag("use_beam_search", False):
        best_of = count
    if not prompts and suffix:
        prompts = [""]
    if not prompts or (not all(prompts) and not suffix):
        raise OptionError("prompt is required")
    top, prompt_top = fields.integer("logprobs", None), fields.integer("prompt_logprobs", None)
    is_whole = echoes or prompt_top is not None or not isinstance(prompts[0], str)
    raw = fields.flag("raw", is_whole)
    if is_whole and not raw:
        raise OptionError(
            "echo, prompt_logprobs and prompts of tokens require raw mode; leave out raw: false"
        )
    if raw and suffix:
        raise OptionError(
            "suffix needs the model's template, which raw, echo, prompt_logprobs and tokens exclude"
        )
    common = _common(fields, num_searched) | ({"truncate": False, "shift": False} if is_whole else {})
    request = GenerateRequest(
        prompt="",
        suffix=suffix,
        raw=raw,
        echoes=echoes,
        logprobs=top is not None or best_of > count,
        top_logprobs=top_of(top or 0),
        prompt_logprobs=_prompt_top(prompt_top, top if echoes else None),
        **common,
    )
    return CompletionRequest(
        [replace(request, **_prompted(prompt)) for prompt in prompts],
        count,
        best_of,
        has_logprobs=top is not None,
        has_prompt_logprobs=prompt_top is not None,
    )


def _read_counts(fields: Fields) -> tuple[int, int]:
    """Read `n` and `best_of`."""
    count = read_count(fields.data)
    best_of = fields.integer("best_of", count)
    if not count <= best_of <= MAX_ANSWERS:
        raise OptionError(f"best_of must be at least n and at most {MAX_ANSWERS}")
    if best_of > count and fields.flag("stream", False):
        raise OptionError("a stream cannot choose the best of its answers; set best_of to n, or leave it out")
    return count, best_of


def _prompts(value: Any) -> list[str | list[int]]:
    """Read one or several prompts, which are texts or lists of tokens."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise OptionError(f"prompt must be {_PROMPTS}")
    if value and _are_tokens(value):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise OptionError(f"there are {len(value)} prompts; at most {MAX_PROMPTS} are allowed")
    kind = str if value and isinstance(value[0], str) else list
    if not all(isinstance(item, kind) and (kind is str or _are_tokens(item)) for item in value):
        raise OptionError(f"prompt must be {_PROMPTS}")
    return list(value)


def _are_tokens(items: Sequence[Any]) -> bool:
    return all(type(item) is int for item in items)


def _prompted(prompt: str | list[int]) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"token_ids": prompt}


def _prompt_top(asked: int | None, echoed: int | None) -> int | None:
    """Return the number of top log-probabilities for each token of the prompt; None for none."""
    found = [top for top in (asked, echoed) if top is not None]
    if any(not 0 <= top <= MAX_TOP_LOGPROBS for top in found):
        raise OptionError(f"prompt_logprobs and logprobs must be between 0 and {MAX_TOP_LOGPROBS}")
    return max(found, default=None)


def _chat_prompt_top(fields: Fields) -> int | None:
    """Read `prompt_logprobs` of a chat. As in vLLM, a stream cannot return them."""
    top = _prompt_top(fields.integer("prompt_logprobs", None), None)
    if top is not None and fields.flag("stream", False):
        raise OptionError("a stream cannot return prompt_logprobs; leave out stream or prompt_logprobs")
    return top


def read_count(body: Mapping[str, Any]) -> int:
    """Return the number of answers. Raises OptionError."""
    count: int = Fields(body).integer("n", 1)
    if not 1 <= count <= MAX_ANSWERS:
        raise OptionError(f"n must be 1 to {MAX_ANSWERS}")
    return count


def read_embeddings(body: Mapping[str, Any]) -> tuple[EmbedRequest, bool]:
    """Read a request of /v1/embeddings, and whether it asks for base64. Raises OptionError."""
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
    request = EmbedRequest(
        model=fields.text("model"), inputs=inputs, dimensions=dimensions, truncate=truncate
    )
    return request, encoding == "base64"


def includes_usage(body: Mapping[str, Any]) -> bool:
    """Return whether a stream ends with token counts."""
    return Fields(Fields(body).mapping("stream_options"), "stream_options").flag("include_usage", False)


def _common(fields: Fields, count: int) -> dict[str, Any]:
    """Read the fields that chats and completions share. `count` is the number of beams of a beam search."""
    format = _format(Fields(fields.mapping("response_format"), "response_format"))
    constrained = read_constraint(fields, "response_format", format)
    options = _searched(fields, read_options(fields, *_LIMITS), count)
    given = limit_of(fields, *_LIMITS)
    budget, budget_given_as = read_budget(fields)
    return {
        "model": fields.text("model"),
        "options": {**options, **constrained.options, **budget},
        "given_as": {**given, **constrained.given_as, **budget_given_as},
        "stream": fields.flag("stream", False),
        "format": constrained.format,
        "keep_alive": parse_duration(fields.data["keep_alive"]) if fields.has("keep_alive") else None,
        "truncate": fields.flag("truncate", True),
        "think": agreed(read_thinking(fields)),
        "template_variables": template_variables(fields),
        "lora": read_lora(fields),
    }


def _searched(fields: Fields, options: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the options, with those of a search with `count` beams if the request asks for one."""
    given = {name: fields.data[name] for name in ("length_penalty", "early_stopping") if fields.has(name)}
    if not fields.flag("use_beam_search", False):
        return options | given
    options = {"num_beams": count} | options
    # vLLM divides by the temperature, whose default is 1.
    if options["temperature"] not in (0, 1):
        raise OptionError("use_beam_search uses the model's own probabilities; leave out temperature")
    return options | {"temperature": 0.0} | (given if is_search(options) else {})


def limit_of(fields: Fields, *limits: str) -> dict[str, str]:
    """Return the field that sets the option `num_predict`: the first of `limits` that is present, if any."""
    name = next((name for name in limits if fields.has(name)), None)
    return {} if name is None else {"num_predict": name}


def read_options(fields: Fields, *limits: str) -> dict[str, Any]:
    """Return the options of a request under Ollama's names.

    limits: names of the fields that may limit the tokens of an answer
    """
    options = dict(fields.mapping("options"))
    options |= {**_USUAL, **fields.options(_FIELDS), **fields.receipt()}
    if is_search(options) and options["temperature"] == 1:  # a search uses the model's own probabilities
        options["temperature"] = 0.0
    if name := limit_of(fields, *limits).get("num_predict"):
        limit = fields.integer(name, 0)
        if limit < -1:
            raise OptionError(f"{name} must be at least 0, or -1 for as many tokens as fit the context")
        options["num_predict"] = limit if limit >= 0 else _TO_THE_END
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
    """Return the schema that the answer must follow. Raises OptionError if it is missing."""
    schema = fields.mapping("schema")
    if not schema:
        raise OptionError(f"{fields.where}.schema is missing")
    return schema


def top_of(count: int) -> int:
    """Check and return the number of top log-probabilities for each token. Raises OptionError."""
    if not 0 <= count <= MAX_TOP_LOGPROBS:
        raise OptionError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}")
    return count
