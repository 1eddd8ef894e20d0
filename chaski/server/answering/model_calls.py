"""Calls of models, made from requests of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from chaski.chat.demanded_calls import chosen_tools
from chaski.chat.formats import Think
from chaski.chat.images import image_bytes
from chaski.chat.requests import Chat, Fill, Generate, detached
from chaski.server.answering.jobs import Job, lacks, require
from chaski.server.answering.requests import ChatRequest, GenerateRequest

__all__ = ["chat_call", "generate_call"]


async def chat_call(job: Job, request: ChatRequest) -> Chat:
    """Return the call that answers a conversation. Raises OptionError for what the model cannot do."""
    turns, sources = detached(job.info.defaults.conversation(request.messages))
    if sources:
        job.require_vision()
    chat_format = await asyncio.to_thread(lambda: job.info.chat_format)
    tools = chosen_tools(request.tools, request.tool_choice)
    require(not tools or "tools" in chat_format.capabilities, lacks(job, "tools"))
    opening = len(turns) - len(request.messages)
    can_think = "thinking" in chat_format.capabilities
    require(can_think or not request.think or request.drops_think, _no_thinking(job))
    return Chat(
        messages=tuple(turns),
        tools=tuple(request.tools),
        options=job.answer_options(request.format),
        images=tuple(map(image_bytes, sources)),
        think=_think(request, can_think),
        tool_choice=request.tool_choice,
        parallel_calls=request.parallel_calls,
        variables=dict(request.template_variables),
        stored=job.info.stored,
        shortens=request.truncate,
        tells_prompt=True,
        draw=request.draw,
        marks=tuple(replace(mark, message=mark.message + opening) for mark in request.marks),
        begun=request.begun,
    )


def _think(request: ChatRequest, can_think: bool) -> Think:
    """Value of `think` that the template gets."""
    if request.think is None and can_think and not request.thinks_unasked:
        return False
    return request.think if can_think or not request.think else None


async def generate_call(job: Job, request: GenerateRequest) -> Generate | Fill | Chat:
    """Return the call that answers or continues a prompt. Raises OptionError for what the model cannot do."""
    if request.images:
        job.require_vision()
    is_plain = request.raw or request.fills_in or bool(request.token_ids)
    require(not (is_plain and request.template_variables), "chat_template_kwargs need a conversation")
    if request.raw or request.token_ids:
        prompt = tuple(request.token_ids) or request.prompt
        images = tuple(request.images)
        return Generate(prompt, job.answer_options(request.format), images, True, request.draw)
    # A template of the request is checked by the model, which reads it.
    own = None if request.template else await asyncio.to_thread(lambda: job.info.chat_format)
    if request.fills_in:
        can_fill = own is None or "insert" in own.capabilities or job.info.fill_in_tokens is not None
        require(can_fill, lacks(job, "insert"))
        return Fill(
            prompt=request.prompt,
            suffix=request.suffix,
            options=job.answer_options(request.format),
            begun=request.begun or "",
            images=tuple(request.images),
            stored=job.info.stored,
            template=request.template or None,
            tells_prompt=True,
            draw=request.draw,
        )
    require(own is None or not request.think or "thinking" in own.capabilities, _no_thinking(job))
    turns, sources = detached(job.info.defaults.conversation(_messages(request)))
    return Chat(
        messages=tuple(turns),
        tools=(),
        options=job.answer_options(request.format),
        images=tuple(map(image_bytes, sources)),
        think=request.think,
        variables=dict(request.template_variables),
        stored=job.info.stored,
        template=request.template or None,
        context=tuple(request.context),
        shortens=False,
        tells_prompt=True,
        draw=request.draw,
    )


def _messages(request: GenerateRequest) -> Sequence[Mapping[str, Any]]:
    asked: dict[str, Any] = {"role": "user", "content": request.prompt, "images": request.images}
    return [{"role": "system", "content": request.system}, asked] if request.system else [asked]


def _no_thinking(job: Job) -> str:
    return f'"{job.request.model}" does not support thinking'
