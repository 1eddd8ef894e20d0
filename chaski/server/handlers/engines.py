"""The routes of llama.cpp's server and of vLLM for tokens, templates and loaded models.

A request to one of llama.cpp's routes need not name a model, since llama.cpp's server has only one. The
model that was used last then answers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from chaski.errors import BusyError, OptionError
from chaski.runner.loading.model_info import ModelInfo
from chaski.server.answering.requests import ModelRequest
from chaski.server.dialects import llamacpp, openai
from chaski.server.dialects.ollama import read_keep_alive
from chaski.server.fields.reader import Fields
from chaski.server.http.endpoint import HTTPRequest, Reply
from chaski.server.models.loaded import LoadedModel
from chaski.server.network.large_json import Items

__all__ = ["apply_template", "detokenize", "model_of", "props", "slots", "tokenize", "tokenizer_info"]


async def model_of(http: HTTPRequest, able: Callable[[ModelInfo], bool] | None = None) -> str:
    """Return the model that a request names, or else the last used one in memory that is `able`.

    Raises OptionError.
    """
    if named := Fields(http.body).text("model"):
        return named
    loaded: LoadedModel
    for loaded in http.services.models.loaded:
        if able is None or able((await asyncio.to_thread(http.services.catalog.look_up, loaded.name))[1]):
            return loaded.name
    raise OptionError("model is required, since no model in memory fits; name one of GET /models")


async def tokenize(http: HTTPRequest) -> Reply:
    """Return the tokens of `content` in llama.cpp's form, or those of `prompt` or `messages` in vLLM's."""
    fields = Fields(http.body)
    if fields.has("content"):
        return await _tokens_of_content(http, fields)
    tokens, model = http.services.tokens, await model_of(http)
    if fields.has("messages"):
        chat = await http.read(openai.read_chat, {**http.body, "model": model})
        found = await tokens.conversation(chat, http.client)
    elif fields.has("prompt"):
        request = ModelRequest(model=model, keep_alive=read_keep_alive(fields))
        add_special = fields.flag("add_special_tokens", True)
        found = await tokens.tokenize(request, fields.text("prompt"), http.client, add_special)
    else:
        raise OptionError("content, prompt or messages is required")
    strings = None
    if fields.flag("return_token_strs", False):
        spelled = await tokens.spell(model, found.token_ids)
        strings = Items(spelled, lambda data: data.decode(errors="replace"))
    count = len(found.token_ids)
    return {
        "count": count,
        "max_model_len": found.context,
        "tokens": found.token_ids,
        "token_strs": strings,
    }


async def _tokens_of_content(http: HTTPRequest, fields: Fields) -> Reply:
    tokens, model = http.services.tokens, await model_of(http)
    request = ModelRequest(model=model, keep_alive=read_keep_alive(fields))
    special = fields.flag("add_special", False), fields.flag("parse_special", True)
    found = await tokens.tokenize(request, fields.text("content"), http.client, *special)
    if not fields.flag("with_pieces", False):
        return {"tokens": found.token_ids}
    spelled = await tokens.spell(model, found.token_ids)
    pairs = list(zip(found.token_ids, spelled, strict=True))
    return {"tokens": Items(pairs, lambda pair: {"id": pair[0], "piece": _piece(pair[1])})}


def _piece(data: bytes) -> str | list[int]:
    """Return the text of a token, or its bytes if they are not valid UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(http: HTTPRequest) -> Reply:
    """Return the text of tokens, under the field names of both engines."""
    fields = Fields(http.body)
    tokens = fields.items("tokens")
    if not all(type(token) is int for token in tokens):
        raise OptionError("tokens must be a list of integers")
    request = ModelRequest(model=await model_of(http), keep_alive=read_keep_alive(fields))
    text = await http.services.tokens.detokenize(request, tokens, http.client)
    return {"content": text, "prompt": text}


async def apply_template(http: HTTPRequest) -> Reply:
    """Return the prompt that the model's template makes of a conversation."""
    request = await http.read(openai.read_chat, {**http.body, "model": await model_of(http)})
    http.ignored.update(request.ignored)
    return {"prompt": await http.services.tokens.rendered(request, http.client)}


async def props(http: HTTPRequest) -> Reply:
    """Describe a model in memory and its settings: `?model=`, or else the one that was used last."""
    from chaski import __version__

    loaded = await _loaded(http)
    if not loaded:
        raise OptionError("no such model is in memory; send it a request first")
    _, info = await asyncio.to_thread(http.services.catalog.look_up, loaded[0].name)
    sources, capabilities = info.sources, loaded[0].info.capabilities
    return {
        "default_generation_settings": {
            "n_ctx": loaded[0].info.context,
            "params": llamacpp.settings_of(info.defaults.options),
        },
        "total_slots": loaded[0].parallel,
        "model_alias": loaded[0].name,
        "model_path": loaded[0].name,
        "modalities": {"vision": info.sees(loaded[0].info.engine), "audio": False},
        "chat_template": sources.go or sources.jinja or "",
        "chat_template_caps": {
            "supports_tools": "tools" in capabilities,
            "supports_tool_calls": "tools" in capabilities,
        },
        "bos_token": sources.bos,
        "eos_token": sources.eos,
        "build_info": f"chaski {__version__}",
        "is_sleeping": False,
    }


async def tokenizer_info(http: HTTPRequest) -> Reply:
    """Return the special tokens and the template of a model in memory, in vLLM's form."""
    loaded = await _loaded(http)
    if not loaded:
        raise OptionError("no such model is in memory; send it a request first")
    _, info = await asyncio.to_thread(http.services.catalog.look_up, loaded[0].name)
    sources = info.sources
    return {
        "tokenizer_class": "GGUF",
        "model": loaded[0].name,
        "model_max_length": loaded[0].info.context,
        "bos_token": sources.bos or None,
        "eos_token": sources.eos or None,
        "chat_template": sources.jinja,
    }


async def slots(http: HTTPRequest) -> Reply:
    """List the slots of the models in memory, and whether they are in use, but not their prompts."""
    found: list[dict[str, Any]] = []
    for loaded in await _loaded(http):
        taken = min(loaded.users - loaded.queue.waiting, loaded.parallel)
        for number in range(loaded.parallel):
            place = {"id": len(found), "model": loaded.name, "n_ctx": loaded.info.context}
            found.append({**place, "is_processing": number < taken})
    if http.request.query_params.get("fail_on_no_slot") and all(each["is_processing"] for each in found):
        raise BusyError("no slot is free")
    return found


async def _loaded(http: HTTPRequest) -> list[LoadedModel]:
    """Return the models in memory, or only the one that `?model=` names."""
    loaded: list[LoadedModel] = http.services.models.loaded
    named = http.request.query_params.get("model")
    if not named:
        return loaded
    path = (await asyncio.to_thread(http.services.catalog.find, named)).model.path
    return [each for each in loaded if each.path == path]
