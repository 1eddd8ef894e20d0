"""OpenAI's API: chat completions, completions, embeddings."""

from __future__ import annotations

from contextlib import aclosing

from msgspec.structs import replace

from chaski.server.answering.events import Delta, Finish, ServiceEvents
from chaski.server.answering.several import merged, repeated, wholes
from chaski.server.dialects import openai
from chaski.server.http.api import sse
from chaski.server.http.endpoint import HTTPRequest, Reply, Stream

__all__ = ["chat", "completions", "embeddings"]

_DONE = b"data: [DONE]\n\n"


async def chat(http: HTTPRequest) -> Reply:
    """Answer a conversation."""
    request, count = await http.read(openai.read_chat, http.body), openai.read_count(http.body)
    http.ignored.update(request.ignored)
    first, *others = repeated(request, count)
    # All answers have the same prompt, so its scores are computed only once.
    requests = [first, *(replace(each, prompt_logprobs=None) for each in others)]
    answers = [http.services.chat.answer(each, http.client) for each in requests]
    names_tool = request.tool_choice not in ("auto", "none", "required")
    if request.stream:
        chunks = openai.Chunks(request.model, custom_tools=request.custom_tools, names_tool=names_tool)
        return _chunks(answers, chunks, openai.includes_usage(http.body))
    return openai.chat_whole(request.model, await wholes(answers), request.custom_tools, names_tool)


async def completions(http: HTTPRequest) -> Reply:
    """Answer prompts of text or tokens, or return their log-probabilities."""
    request = await http.read(openai.read_completion, http.body)
    answers = [
        http.services.chat.answer(each, http.client)
        for prompt in request.prompts
        for each in repeated(prompt, request.best_of)
    ]
    if request.prompts[0].stream:
        return _chunks(answers, openai.Chunks(request.model, request), openai.includes_usage(http.body))
    return openai.completion_whole(request, await wholes(answers))


async def embeddings(http: HTTPRequest) -> Reply:
    """Return the vectors of texts or of lists of tokens."""
    request, in_base64 = await http.read(openai.read_embeddings, http.body)
    found = await http.services.vectors.embed(request, http.client)
    return openai.embeddings(request.model, found.rows, found.num_tokens, in_base64)


async def _chunks(answers: list[ServiceEvents], chunks: openai.Chunks, has_usage: bool) -> Stream:
    finishes: dict[int, Finish] = {}
    async with aclosing(merged(answers)) as events:
        async for index, event in events:
            if isinstance(event, Delta):
                if said := chunks.delta(index, event):
                    yield b"".join(map(sse, said))
            else:
                finishes[index] = event
                yield b"".join(map(sse, chunks.finish(index, event)))
    if has_usage:
        yield sse(chunks.usage([finishes[index] for index in sorted(finishes)]))
    yield _DONE
