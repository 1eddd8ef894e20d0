"""The routes of llama.cpp's server and of vLLM: tokens, templates, loaded models, filling in.

Requests to llama.cpp's routes may name no model, since its server has one only: then the model that was
used last is meant.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from chaski.errors import BusyError, OptionError
from chaski.server.dialects import llamacpp, openai
from chaski.server.dialects.ollama import read_keep_alive
from chaski.server.events import Delta, Event, whole
from chaski.server.fields.reader import Fields
from chaski.server.http.dialect import sse
from chaski.server.http.endpoint import Ask, Reply, Stream
from chaski.server.models.loaded import Loaded
from chaski.server.wishes import Wish

__all__ = ["apply_template", "detokenize", "infill", "props", "slots", "tokenize"]


async def tokenize(ask: Ask) -> Reply:
    """The tokens of `content`, as llama.cpp tells them, or of `prompt` or `messages`, as vLLM does."""
    fields = Fields(ask.body)
    if fields.has("content"):
        return await _tokens_of_content(ask, fields)
    answering, model = ask.services.answering, _model(ask, fields)
    if fields.has("messages"):
        found = await answering.conversation(openai.read_chat({**ask.body, "model": model}), ask.client)
    elif fields.has("prompt"):
        wish = Wish(model=model, keep_alive=read_keep_alive(fields))
        add_special = fields.flag("add_special_tokens", True)
        found = await answering.tokenize(wish, fields.text("prompt"), ask.client, add_special)
    else:
        raise OptionError("content, prompt or messages is required")
    strings = None
    if fields.flag("return_token_strs", False):
        spelled = await answering.spell(model, found.token_ids)
        strings = [each.decode(errors="replace") for each in spelled]
    count = len(found.token_ids)
    return {
        "count": count,
        "max_model_len": found.context,
        "tokens": found.token_ids,
        "token_strs": strings,
    }


async def _tokens_of_content(ask: Ask, fields: Fields) -> Reply:
    answering, model = ask.services.answering, _model(ask, fields)
    wish = Wish(model=model, keep_alive=read_keep_alive(fields))
    special = fields.flag("add_special", False), fields.flag("parse_special", True)
    found = await answering.tokenize(wish, fields.text("content"), ask.client, *special)
    if not fields.flag("with_pieces", False):
        return {"tokens": found.token_ids}
    spelled = await answering.spell(model, found.token_ids)
    pairs = zip(found.token_ids, spelled, strict=True)
    return {"tokens": [{"id": token_id, "piece": _piece(data)} for token_id, data in pairs]}


def _piece(data: bytes) -> str | list[int]:
    """A text, or the bytes of what is none by itself."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(ask: Ask) -> Reply:
    """The text of tokens, under the names that both engines give it."""
    fields = Fields(ask.body)
    tokens = fields.items("tokens")
    if not all(type(token) is int for token in tokens):
        raise OptionError("tokens must be a list of integers")
    wish = Wish(model=_model(ask, fields), keep_alive=read_keep_alive(fields))
    text = await ask.services.answering.detokenize(wish, tokens, ask.client)
    return {"content": text, "prompt": text}


async def apply_template(ask: Ask) -> Reply:
    """A conversation as the model's template writes it."""
    wish = openai.read_chat({**ask.body, "model": _model(ask, Fields(ask.body))})
    ask.ignored.update(wish.ignored)
    return {"prompt": await ask.services.answering.rendered(wish, ask.client)}


async def infill(ask: Ask) -> Reply:
    """The text that belongs between two others."""
    wish = llamacpp.read_infill(ask.body, _model(ask, Fields(ask.body)))
    events = ask.services.answering.generate(wish, ask.client)
    if wish.stream:
        return _pieces(wish.model, events)
    answer = await whole(events)
    return llamacpp.infill_end(wish.model, answer.content, answer.finish)


async def _pieces(model: str, events: AsyncGenerator[Event, None]) -> Stream:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Delta):
                yield sse(llamacpp.infill_piece(event))
            else:
                yield sse(llamacpp.infill_end(model, "", event))


async def props(ask: Ask) -> Reply:
    """A model and how it is loaded: the one in memory that was used last, or `?model=`."""
    from chaski import __version__

    loaded = await _loaded(ask)
    if not loaded:
        raise OptionError("no such model is in memory; ask it something first")
    _, info = await asyncio.to_thread(ask.services.catalog.look_up, loaded[0].name)
    sources = info.sources
    return {
        "default_generation_settings": {"n_ctx": loaded[0].info.context},
        "total_slots": loaded[0].parallel,
        "model_alias": loaded[0].name,
        "model_path": loaded[0].name,
        "modalities": {"vision": info.has_vision, "audio": False},
        "chat_template": sources.go or sources.jinja or "",
        "bos_token": sources.bos,
        "eos_token": sources.eos,
        "build_info": f"chaski {__version__}",
    }


async def slots(ask: Ask) -> Reply:
    """The places of the models in memory, and whether they are taken; nothing of what is asked in them."""
    found: list[dict[str, Any]] = []
    for loaded in await _loaded(ask):
        taken = min(loaded.users - loaded.queue.waiting, loaded.parallel)
        for number in range(loaded.parallel):
            place = {"id": len(found), "model": loaded.name, "n_ctx": loaded.info.context}
            found.append({**place, "is_processing": number < taken})
    if ask.request.query_params.get("fail_on_no_slot") and all(each["is_processing"] for each in found):
        raise BusyError("no slot is free")
    return _listed(found)


def _listed(items: list[dict[str, Any]]) -> Reply:
    from starlette.responses import Response

    from chaski.server.network.jsons import dump

    return Response(dump(items), media_type="application/json; charset=utf-8")


def _model(ask: Ask, fields: Fields) -> str:
    """The model that a request names, else the one that was used last."""
    if named := fields.text("model"):
        return named
    loaded = ask.services.models.loaded
    if not loaded:
        raise OptionError("model is required: none is in memory that could be meant")
    return str(loaded[0].name)


async def _loaded(ask: Ask) -> list[Loaded]:
    """The models in memory; with `?model=` that one only."""
    loaded: list[Loaded] = ask.services.models.loaded
    named = ask.request.query_params.get("model")
    if not named:
        return loaded
    path = (await asyncio.to_thread(ask.services.catalog.find, named)).model.path
    return [each for each in loaded if each.path == path]
