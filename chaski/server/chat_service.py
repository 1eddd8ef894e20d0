"""`ChatService`: from a typed request to typed events. What all dialects and handlers share."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.chat.demanded_calls import DemandedCall, chosen_tools, schema_of_call
from chaski.chat.events import PromptScores, Text
from chaski.chat.formats import ChatFormat, go_format, plain_format
from chaski.chat.shortening import cut
from chaski.errors import OptionError
from chaski.names import NATIVE
from chaski.runner.generation.output_sequences import normalized, relevance
from chaski.server.events import Delta, Event, Finish, Prompted
from chaski.server.metrics import Metrics
from chaski.server.models.catalog import Catalog, Found, ModelInfo
from chaski.server.models.loaded import Loaded, Needs
from chaski.server.models.pool import Models
from chaski.server.options import Options, read_options
from chaski.server.prompts import (
    Prompt,
    Turns,
    check_length,
    conversation_prompt,
    encode,
    pair_ids,
    text_prompt,
)
from chaski.server.requests import ChatRequest, EmbedRequest, GenerateRequest, ModelRequest, RerankRequest
from chaski.server.scores import prompted_of, score_of
from chaski.server.settings import Settings
from chaski.text.parsers import Lead, Parser, Piece, Thinking, ToolCall, parser_for

__all__ = ["ChatService", "Embedded"]


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors (n, size), or how well documents fit (n,), and what they took."""

    rows: npt.NDArray[np.float32]
    num_tokens: int
    load_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The tokens of a text, and how many the model may hold."""

    token_ids: list[int]
    context: int


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that is being answered, with its model, its start and its `AnswerOptions.cache_salt`."""

    request: ModelRequest
    found: Found
    info: ModelInfo
    options: Options
    started: float
    cache_salt: str

    @property
    def needs(self) -> Needs:
        """What it wants of the model."""
        usual = self.found.model.parameters.get("num_ctx")
        engine = self.options.engine or self.info.engine
        return Needs(
            path=self.found.model.path,
            name=self.found.name.short,
            projector=self.info.projector if engine == NATIVE else None,
            draft=self.found.model.draft if engine == NATIVE else None,
            context=self._bounded(self.options.context),
            usual_context=self._bounded(usual if isinstance(usual, int) else None),
            threads=self.options.threads,
            engine=engine,
            keep_alive=self.request.keep_alive,
        )

    def _bounded(self, context: int | None) -> int | None:
        """Never more than the model was made for."""
        return context and min(context, self.info.trained_context or context)


@dataclass(slots=True)
class _Counts:
    """What an answer has shown so far: whether there were calls, and how many of its tokens are thinking."""

    called: bool = False
    thought: int = 0
    _first: int = 0  # tokens before anything but thinking
    _is_first: bool = True

    def note(self, pieces: Sequence[Piece], num_tokens: int) -> None:
        """Go on behind the pieces of some tokens."""
        kinds = {type(piece) for piece in pieces}
        self.called = self.called or ToolCall in kinds
        if self._is_first:
            self._is_first = kinds <= {Thinking}
            self._first += num_tokens if self._is_first else 0
            if Thinking in kinds:
                self.thought = self._first


class ChatService:
    """Answers requests. For one event loop."""

    def __init__(self, settings: Settings, catalog: Catalog, models: Models, metrics: Metrics) -> None:
        self._settings = settings
        self._catalog = catalog
        self._models = models
        self._metrics = metrics

    async def chat(self, request: ChatRequest, client: str) -> AsyncGenerator[Event, None]:
        """Answer a conversation."""
        job = await self._job(request, client)
        _require(job.info.makes_text, f'"{request.model}" does not support chat')
        has_images = any(message.get("images") for message in request.messages)
        _require(not has_images or job.info.has_vision, _lacks(job, "vision"))
        chat_format = await asyncio.to_thread(lambda: job.info.chat_format)
        tools = chosen_tools(request.tools, request.tool_choice)
        _require(not tools or "tools" in chat_format.capabilities, _lacks(job, "tools"))
        think = _think(job, chat_format, request.think, request.drops_think)
        messages = job.info.defaults.conversation(request.messages)
        turns = Turns(chat_format, messages, tools, think, request.template_variables)
        is_demanded = bool(tools) and request.tool_choice not in ("auto", "none")
        async with self._models.use(job.needs, client) as loaded:
            loading = perf_counter() - job.started
            prompt = await conversation_prompt(loaded, turns, request)
            reader: Parser = chat_format.reader(
                prompt.text, () if is_demanded else tools, bool(think), _thought(messages)
            )
            if is_demanded:
                reader = DemandedCall(reader)
            other = next((name for name in _OTHER_CONSTRAINTS if name in job.options.generate), None)
            _require(not (is_demanded and other), f"tool_choice and {other} exclude each other; give one")
            format = schema_of_call(tools) if is_demanded else request.format
            lead = None if _is_begun(prompt.text, messages) else reader.lead
            options = {**_generation(job, format, lead), **_SPECIAL}
            async with aclosing(self._run(job, loaded, prompt, reader, options, loading)) as events:
                async for event in events:
                    yield event

    async def generate(self, request: GenerateRequest, client: str) -> AsyncGenerator[Event, None]:
        """Answer a prompt, or continue it."""
        job = await self._job(request, client)
        _require(job.info.makes_text, f'"{request.model}" does not support generate')
        _require(not request.images or job.info.has_vision, _lacks(job, "vision"))
        chat_format = await asyncio.to_thread(_chat_format, job, request)
        _require(not request.fills_in or request.raw or _can_fill_in(job, chat_format), _lacks(job, "insert"))
        is_plain = request.raw or request.fills_in
        _require(not (is_plain and request.template_variables), "chat_template_kwargs need a conversation")
        think = None if is_plain else _think(job, chat_format, request.think, False)
        async with self._models.use(job.needs, client) as loaded:
            loading = perf_counter() - job.started
            prompt = await self._prompt(job, loaded, request, chat_format, think)
            reader = (
                parser_for("passthrough") if is_plain else chat_format.reader(prompt.text, (), bool(think))
            )
            options = {**_generation(job, request.format, reader.lead), **({} if is_plain else _SPECIAL)}
            async with aclosing(self._run(job, loaded, prompt, reader, options, loading)) as events:
                async for event in events:
                    yield event

    async def embed(self, request: EmbedRequest, client: str) -> Embedded:
        """Make vectors."""
        job = await self._job(request, client)
        _require(job.info.is_embedding, _lacks(job, "embedding"))
        async with self._models.use(job.needs, client) as loaded:
            loading = perf_counter() - job.started
            prompts = [await _ids(loaded, text) for text in request.inputs]
            for ids in prompts:
                check_length(ids, loaded, request)
            prompts = [await _cut_to_fit(loaded, *each) for each in zip(request.inputs, prompts, strict=True)]
            if prompts:
                rows = await loaded.model.embed(prompts, normalize=request.normalize)
            else:
                rows = np.zeros((0, 0), np.float32)
        count = sum(map(len, prompts))
        self._metrics.count_prompt(job.found.name.short, count, 0)
        return Embedded(_cut(rows, request.dimensions), count, loading, perf_counter() - job.started)

    async def rerank(self, request: RerankRequest, client: str) -> Embedded:
        """How well each document answers the query, 0 to 1."""
        job = await self._job(request, client)
        _require(job.info.is_ranking, _lacks(job, "rerank"))
        template = job.info.ranking_template
        async with self._models.use(job.needs, client) as loaded:
            loading = perf_counter() - job.started
            prompts = [
                await pair_ids(loaded, template, request.query, document, request)
                for document in request.documents
            ]
            scores = relevance(await loaded.model.embed(prompts, normalize=False))
        count = sum(map(len, prompts))
        self._metrics.count_prompt(job.found.name.short, count, 0)
        return Embedded(scores, count, loading, perf_counter() - job.started)

    async def load(self, request: ModelRequest, client: str) -> float:
        """Only load a model -> the seconds that it took."""
        job = await self._job(request, client)
        async with self._models.use(job.needs, client):
            return perf_counter() - job.started

    async def unload(self, label: str) -> None:
        """Let a model go, as soon as nobody uses it."""
        found = await asyncio.to_thread(self._catalog.find, label)
        await self._models.expire(found.model.path)

    async def tokenize(
        self,
        request: ModelRequest,
        text: str,
        client: str,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> Tokenized:
        """The tokens of a text. add_special: with those that open and close every text."""
        job = await self._job(request, client)
        async with self._models.use(job.needs, client) as loaded:
            ids = await loaded.model.tokenize(text, add_special, parse_special)
            return Tokenized(ids, loaded.info.context)

    async def spell(self, label: str, token_ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token."""
        _, info = await asyncio.to_thread(self._catalog.look_up, label)
        return await asyncio.to_thread(
            lambda: [info.tokenizer.token_bytes(token_id, special=True) for token_id in token_ids]
        )

    async def detokenize(self, request: ModelRequest, token_ids: Sequence[int], client: str) -> str:
        """The text of tokens."""
        job = await self._job(request, client)
        async with self._models.use(job.needs, client) as loaded:
            _check_ids(token_ids, loaded)
            return await loaded.model.detokenize(token_ids)

    async def count(self, request: ChatRequest, client: str) -> int:
        """How many tokens the prompt of a conversation has, all of it."""
        return len((await self.conversation(request, client)).token_ids)

    async def rendered(self, request: ChatRequest, client: str) -> str:
        """A conversation as the model's template writes it."""
        return await asyncio.to_thread((await self._turns(await self._job(request, client), request)).render)

    async def conversation(self, request: ChatRequest, client: str) -> Tokenized:
        """The tokens of the prompt of a conversation, all of it."""
        job = await self._job(request, client)
        turns = await self._turns(job, request)
        async with self._models.use(job.needs, client) as loaded:
            ids = await encode(loaded, await asyncio.to_thread(turns.render), turns.images)
            return Tokenized(ids, loaded.info.context)

    async def _turns(self, job: _Job, request: ChatRequest) -> Turns:
        chat_format = await asyncio.to_thread(lambda: job.info.chat_format)
        think = _think(job, chat_format, request.think, request.drops_think)
        tools = chosen_tools(request.tools, request.tool_choice)
        messages = job.info.defaults.conversation(request.messages)
        turns = Turns(chat_format, messages, tools, think, request.template_variables)
        _require(not turns.images or job.info.has_vision, _lacks(job, "vision"))
        return turns

    async def _job(self, request: ModelRequest, client: str) -> _Job:
        started = perf_counter()
        found, info = await asyncio.to_thread(self._catalog.look_up, request.model)
        # Without keys there is one user, and all prompts are that one's.
        cache_salt = hashlib.sha256(client.encode()).hexdigest() if self._settings.has_keys else ""
        return _Job(request, found, info, read_options(request.options), started, cache_salt)

    async def _prompt(
        self,
        job: _Job,
        loaded: Loaded,
        request: GenerateRequest,
        chat_format: ChatFormat,
        think: bool | str | None,
    ) -> Prompt:
        if request.token_ids:
            _check_ids(request.token_ids, loaded)
            text = await loaded.model.detokenize(request.token_ids) if request.echoes else ""
            return Prompt(text, list(request.token_ids))
        if request.raw:
            ids = await loaded.model.tokenize(request.prompt, images=request.images)
            return Prompt(request.prompt, ids, images=request.images)
        if request.fills_in:
            text = await asyncio.to_thread(_filled_in, job, chat_format, request) + (request.begun or "")
            return await text_prompt(loaded, text, request.images)
        asked: dict[str, Any] = {"role": "user", "content": request.prompt, "images": request.images}
        messages = [{"role": "system", "content": request.system}, asked] if request.system else [asked]
        conversation = job.info.defaults.conversation(messages)
        turns = Turns(chat_format, conversation, (), think, request.template_variables)
        text = await asyncio.to_thread(turns.render)
        prompt = await text_prompt(loaded, text, turns.images)
        if not request.context:
            return prompt
        begun = [token for token in request.context if 0 <= token < loaded.info.vocab_size]
        opening = loaded.opening or []
        later = prompt.token_ids[len(opening) :] if prompt.token_ids[:1] == opening else prompt.token_ids
        return Prompt(text, begun + later, images=prompt.images)

    async def _run(
        self,
        job: _Job,
        loaded: Loaded,
        prompt: Prompt,
        reader: Parser,
        options: Mapping[str, Any],
        load_seconds: float,
    ) -> AsyncGenerator[Event, None]:
        """The events of a prompt."""
        request, name = job.request, job.found.name.short
        check_length(prompt.token_ids, loaded, request)
        keeps_ids = isinstance(request, GenerateRequest) and request.returns_context
        is_single = isinstance(request, ChatRequest) and not request.parallel_calls
        written: list[int] = []
        counts = _Counts()
        plain = request if isinstance(request, GenerateRequest) else None
        if request.logprobs or (plain is not None and plain.prompt_logprobs is not None):
            await asyncio.to_thread(lambda: job.info.tokenizer)
        if plain is not None and plain.echoes and plain.prompt_logprobs is None:
            yield Delta((), (), len(prompt.token_ids), Prompted(prompt.text))
        async with aclosing(loaded.model.stream(prompt.token_ids, prompt.images, **options)) as events:
            async for event in events:
                if isinstance(event, PromptScores):
                    first, tokenizer = prompt.token_ids[0], job.info.tokenizer
                    told = await asyncio.to_thread(prompted_of, prompt.text, first, event.logprobs, tokenizer)
                    yield Delta((), (), len(prompt.token_ids), told)
                    continue
                if isinstance(event, Text):
                    pieces = reader.feed(event.text)
                    scores = [score_of(sampled, job.info.tokenizer) for sampled in event.logprobs]
                    if keeps_ids:
                        written += event.token_ids
                else:
                    pieces, scores = reader.flush(), []
                if is_single:
                    pieces = _until_second_call(pieces, counts.called)
                counts.note(pieces, len(event.token_ids) if isinstance(event, Text) else 0)
                if pieces or scores:
                    yield Delta(pieces, scores, len(prompt.token_ids))
                if not isinstance(event, Text):
                    self._metrics.count_answer(name, event)
                    yield Finish(
                        done=event,
                        called=counts.called,
                        context=loaded.info.context,
                        dropped=prompt.dropped + event.dropped_tokens,
                        thought=counts.thought,
                        token_ids=prompt.text_ids + written if keeps_ids else None,
                        load_seconds=load_seconds,
                        total_seconds=perf_counter() - job.started,
                    )


# The signs that readers look for are control tokens in many models.
_SPECIAL: Mapping[str, Any] = {"special": True}


_OTHER_CONSTRAINTS = ("regex", "choice", "grammar")


def _generation(job: _Job, format: Any, lead: Lead | None) -> dict[str, Any]:
    """The options of a generation: the model's own, then those of the request."""
    request = job.request
    options = {**job.info.defaults.options, **job.options.generate}
    options |= {"truncate": request.truncate, "shift": request.shift, "cache_salt": job.cache_salt}
    if format is not None:
        options["format"] = format
    if lead is not None and any(name in options for name in ("format", *_OTHER_CONSTRAINTS)):
        options["format_thought"] = asdict(lead)
    if request.logprobs:
        options |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if isinstance(request, GenerateRequest) and request.prompt_logprobs is not None:
        options["prompt_logprobs"] = request.prompt_logprobs
    return options


def _until_second_call(pieces: Sequence[Piece], called: bool) -> list[Piece]:
    """Without further calls, for those who asked for one at most."""
    kept: list[Piece] = []
    for piece in pieces:
        if not (called and isinstance(piece, ToolCall)):
            kept.append(piece)
        called = called or isinstance(piece, ToolCall)
    return kept


def _chat_format(job: _Job, request: GenerateRequest) -> ChatFormat:
    """How the prompt is written. A raw one needs no template, nor that of the model to be readable."""
    if request.raw:
        return plain_format()
    return go_format(request.template, job.info.sources) if request.template else job.info.chat_format


def _think(job: _Job, chat_format: ChatFormat, think: bool | str | None, drops: bool) -> bool | str | None:
    """Whether to think: models that can do so do, unless they are told otherwise."""
    if "thinking" in chat_format.capabilities:
        return chat_format.thinking(think)
    _require(not think or drops, f'"{job.request.model}" does not support thinking')
    return None if think else think


def _is_begun(prompt: str, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the prompt ends in the middle of an answer, so that all is thought."""
    last = messages[-1] if messages else {}
    said = str(last.get("content") or "").strip() if last.get("role") == "assistant" else ""
    return bool(said) and prompt.rstrip().endswith(said)


def _thought(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the answer has thought already, where the conversation ends in the middle of a thought."""
    last = messages[-1] if messages else {}
    is_thought = last.get("role") == "assistant" and not last.get("content") and not last.get("tool_calls")
    return str(last.get("thinking") or "") if is_thought else ""


async def _ids(loaded: Loaded, text: str | Sequence[int]) -> list[int]:
    return await loaded.model.tokenize(text) if isinstance(text, str) else list(text)


async def _cut_to_fit(loaded: Loaded, text: str | Sequence[int], ids: list[int]) -> list[int]:
    if len(ids) <= loaded.info.context:
        return ids
    bare = await loaded.model.tokenize(text, add_special=False) if isinstance(text, str) else ids
    return cut(ids, bare, loaded.info.context)


def _cut(rows: npt.NDArray[np.float32], dimensions: int | None) -> npt.NDArray[np.float32]:
    """The first dimensions, with a length of 1 again."""
    if not dimensions or dimensions >= rows.shape[-1]:
        return rows
    return normalized(rows[:, :dimensions])


def _can_fill_in(job: _Job, chat_format: ChatFormat) -> bool:
    return "insert" in chat_format.capabilities or job.info.fill_in_tokens is not None


def _filled_in(job: _Job, chat_format: ChatFormat, request: GenerateRequest) -> str:
    """By a template where there is one for it, else by the tokens that the model's file names."""
    tokens = job.info.fill_in_tokens
    if "insert" in chat_format.capabilities or tokens is None:
        return chat_format.fill_in(request.prompt, request.suffix)
    before, behind, between = tokens
    return f"{before}{request.prompt}{behind}{request.suffix}{between}"


def _check_ids(token_ids: Sequence[int], loaded: Loaded) -> None:
    size = loaded.info.vocab_size
    outside = [token for token in token_ids if not 0 <= token < size]
    _require(not outside, f"token {outside[:1]} is not among the {size} of the model")


def _lacks(job: _Job, capability: str) -> str:
    return f"{job.found.name} does not support {capability}"


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise OptionError(problem)
