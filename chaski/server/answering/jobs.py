"""`Job`: a request with its model, the settings for loading that model, and the call of the model."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chaski.chat.beams import require_whole
from chaski.chat.demanded_calls import chosen_tools
from chaski.chat.formats import Think
from chaski.chat.images import image_bytes
from chaski.chat.options import RequestOptions, checked_options, merged_options
from chaski.chat.requests import Chat, Fill, Generate, detached
from chaski.errors import ContextLengthError, OptionError
from chaski.names import NATIVE
from chaski.runner.loading.model_info import ModelInfo
from chaski.server.answering.requests import ChatRequest, GenerateRequest, ModelRequest
from chaski.server.models.adapter_table import ChosenAdapter
from chaski.server.models.catalog import Catalog, Found
from chaski.server.models.loaded import LoadedModel, ModelNeeds
from chaski.server.models.pool import ModelPool
from chaski.server.settings import Settings
from chaski.server.telemetry.record import Operation, RequestRecord
from chaski.server.telemetry.recorder import Recorder

__all__ = ["Job", "Jobs", "chat_call", "check_ids", "generate_call", "lacks", "require", "too_long"]

# Ollama's words, which clients know.
_TOO_LONG = "the input length exceeds the context length"
_NO_SHIFT = "the prompt is longer than the context length currently available to the model"

T = TypeVar("T")
Ask: TypeAlias = Callable[[LoadedModel, bool], AsyncGenerator[T, None]]
"""Asks a model. The flag says whether it may answer by ContextLengthError that it needs a longer context."""


class Job(Struct, frozen=True):
    """A running request, with its model, its record and its `AnswerOptions.cache_salt`.

    adapters: the adapters to apply, in order
    state: the file with the state of the model's initial conversation, and the time when it was written
    """

    request: ModelRequest
    found: Found
    info: ModelInfo
    options: RequestOptions
    record: RequestRecord
    cache_salt: str
    adapters: Sequence[ChosenAdapter] = ()
    state: tuple[Path, int] | None = None

    @property
    def needs(self) -> ModelNeeds:
        """The settings with which the job's model must be loaded.

        `needed_context` is unknown until the model has counted the tokens of the prompt.
        """
        usual = self.found.model.parameters.get("num_ctx")
        engine = self.engine
        return ModelNeeds(
            path=self.found.model.path,
            name=self.name,
            projector=self.info.projector(engine),
            draft=self.found.model.draft if engine == NATIVE else None,
            adapters=self.adapters,
            context=self._bounded(self.options.context),
            usual_context=self._bounded(usual if isinstance(usual, int) else None),
            trained=self.info.trained_context,
            threads=self.options.threads,
            placing=self.options.placing,
            engine=engine,
            keep_alive=self.request.keep_alive,
        )

    @property
    def engine(self) -> str:
        """The engine that answers the job."""
        return self.options.engine or self.info.engine

    def require_vision(self) -> None:
        """Raise OptionError if the model cannot read images."""
        require(self.info.sees(self.engine), f"{lacks(self, 'vision')}{self.info.way_to_see}")

    @property
    def name(self) -> str:
        """The name of the model, for display."""
        return self.found.name.short

    @property
    def seconds(self) -> float:
        """Seconds since the request arrived."""
        return perf_counter() - self.record.arrived

    def answer_options(self) -> dict[str, Any]:
        """Return the options of an answer: the model's options, overridden by those of the request."""
        request = self.request
        options = merged_options(self.info.defaults.options, self.options.generate)
        options["cache_salt"] = self.cache_salt
        # A prompt may be cut only if its beginning may also be dropped while the answer grows.
        options["truncate"] = request.truncate and request.shift
        if not request.shift:
            options["shift"] = False
        if self.adapters or "adapter" in options:
            options["adapter"] = [[adapter.key, adapter.scale] for adapter in self.adapters]
        if request.format is not None:
            options["format"] = request.format
        if request.logprobs:
            options |= {"logprobs": True, "top_logprobs": request.top_logprobs}
        if request.prompt_logprobs is not None:
            options["prompt_logprobs"] = request.prompt_logprobs
        return options

    def _bounded(self, context: int | None) -> int | None:
        """Return the context length, limited to the one that the model was trained with."""
        return context and min(context, self.info.trained_context or context)


class Jobs:
    """Factory of jobs, which also provides their models. Use it in one event loop only."""

    def __init__(self, settings: Settings, catalog: Catalog, models: ModelPool, recorder: Recorder) -> None:
        self.catalog = catalog
        self.models = models
        self.recorder = recorder
        self._settings = settings

    async def begin(self, request: ModelRequest, client: str, operation: Operation) -> Job:
        """Look up the model of a request and start its job.

        Raises ModelNotFoundError, errors for invalid options, and errors for a damaged model file.
        """
        started = perf_counter()
        found, info, state = await asyncio.to_thread(self._look_up, request.model)
        # Without keys there is only one user, who owns all prompts.
        cache_salt = hashlib.sha256(client.encode()).hexdigest() if self._settings.has_keys else ""
        options = checked_options(request.options)
        if request.stream:
            require_whole(options.generate)
        adapters = await self._adapters(request, options, found)
        record = self.recorder.begin(found.name.short, operation, started, _limit(options))
        return Job(request, found, info, options, record, cache_salt, adapters, state)

    def _look_up(self, label: str) -> tuple[Found, ModelInfo, tuple[Path, int] | None]:
        found, info = self.catalog.look_up(label)
        return found, info, self.catalog.state(found)

    async def _adapters(
        self, request: ModelRequest, options: RequestOptions, found: Found
    ) -> Sequence[ChosenAdapter]:
        """Return the adapters that a request chooses, or else those of its model."""
        table, weights = self.catalog.adapters, found.model.path
        if request.lora is not None:
            return [table.numbered(number, weights).chosen(scale) for number, scale in request.lora]
        if "adapter" in options.generate:
            return await asyncio.to_thread(self.catalog.chosen, options.generate["adapter"], found)
        return found.adapters or [each.chosen(each.scale) for each in table.of(weights) if each.scale]

    @asynccontextmanager
    async def use(self, job: Job, client: str) -> AsyncIterator[LoadedModel]:
        """Yield a job's model, and load it first if necessary."""
        with self._recorded(job.record):
            async with self._place(job, client, job.needs) as loaded:
                yield loaded

    async def ask(self, job: Job, client: str, ask: Ask[T]) -> AsyncGenerator[T, None]:
        """Yield what a job's model answers. It is loaded again, once, if the job needs a longer context.

        A context that somebody has set stays.
        """
        needs = job.needs
        is_set = needs.context or needs.usual_context or self._settings.context
        with self._recorded(job.record):
            try:
                async with aclosing(self._attempt(job, client, needs, ask, may_grow=not is_set)) as answers:
                    async for each in answers:
                        yield each
                return
            except _LongerContextError as longer:
                needs = replace(needs, needed_context=longer.length)
            async with aclosing(self._attempt(job, client, needs, ask, may_grow=False)) as answers:
                async for each in answers:
                    yield each

    async def _attempt(
        self, job: Job, client: str, needs: ModelNeeds, ask: Ask[T], may_grow: bool
    ) -> AsyncGenerator[T, None]:
        """Yield what a model answers. Raises _LongerContextError where a longer context may help.

        Raises the error of `too_long` where it does not.
        """
        async with self._place(job, client, needs) as loaded:
            may_grow = may_grow and loaded.can_grow
            try:
                async with aclosing(ask(loaded, may_grow)) as answers:
                    async for each in answers:
                        yield each
            except ContextLengthError as error:
                if may_grow and error.length > loaded.info.context:
                    raise _LongerContextError(error.length) from None
                raise too_long(job.request, error) from None

    @asynccontextmanager
    async def _place(self, job: Job, client: str, needs: ModelNeeds) -> AsyncIterator[LoadedModel]:
        claimed = partial(self.recorder.loaded, job.record)
        async with self.models.use(needs, client, claimed) as loaded:
            if job.state is not None:
                await loaded.states.require(*job.state, job.cache_salt)
            yield loaded

    @contextmanager
    def _recorded(self, record: RequestRecord) -> Iterator[None]:
        """End a record when the block ends, with the error that the block raises."""
        error: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            error = caught
            raise
        finally:
            self.recorder.end(record, error)


class _LongerContextError(Exception):
    """A request needs a context of `length` tokens."""

    def __init__(self, length: int) -> None:
        self.length = length


async def chat_call(job: Job, request: ChatRequest) -> Chat:
    """Return the call that answers a conversation. Raises OptionError if the model lacks an ability."""
    turns, sources = detached(job.info.defaults.conversation(request.messages))
    if sources:
        job.require_vision()
    chat_format = await asyncio.to_thread(lambda: job.info.chat_format)
    tools = chosen_tools(request.tools, request.tool_choice)
    require(not tools or "tools" in chat_format.capabilities, lacks(job, "tools"))
    opening = len(turns) - len(request.messages)
    can_think = "thinking" in chat_format.capabilities
    require(can_think or not request.think or request.drops_think, _no_thinking(job))
    options = job.answer_options()
    if request.think is None and not request.thinks_unasked:
        # A thought that the template cannot switch off was not forbidden.
        options.setdefault("reasoning_budget", -1)
    return Chat(
        messages=tuple(turns),
        tools=tuple(request.tools),
        options=options,
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
    """Return the value of `think` for the template."""
    if request.think is None and can_think and not request.thinks_unasked:
        return False
    return request.think if can_think or not request.think else None


async def generate_call(job: Job, request: GenerateRequest) -> Generate | Fill | Chat:
    """Return the call for a prompt. Raises OptionError if the model lacks an ability."""
    if request.images:
        job.require_vision()
    is_plain = request.raw or request.fills_in or bool(request.token_ids)
    require(not (is_plain and request.template_variables), "chat_template_kwargs need a conversation")
    if request.raw or request.token_ids:
        prompt = tuple(request.token_ids) or request.prompt
        images = tuple(request.images)
        return Generate(prompt, job.answer_options(), images, True, request.draw)
    # If the request brings a template, the model checks it when it reads it.
    own = None if request.template else await asyncio.to_thread(lambda: job.info.chat_format)
    if request.fills_in:
        can_fill = own is None or "insert" in own.capabilities or job.info.fill_in_tokens is not None
        require(can_fill, lacks(job, "insert"))
        return Fill(
            prompt=request.prompt,
            suffix=request.suffix,
            options=job.answer_options(),
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
        options=job.answer_options(),
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


def _limit(options: RequestOptions) -> int | None:
    """Return the largest number of tokens that a request asks for; None if it sets no limit."""
    limit = options.generate.get("num_predict")
    return limit if isinstance(limit, int) and limit > 0 else None


def too_long(request: ModelRequest, error: ContextLengthError) -> ContextLengthError:
    """Return the error for a prompt that does not fit, in Ollama's wording, and with what helps."""
    words = _NO_SHIFT if request.truncate else _TOO_LONG
    sizes = error.length, error.limit, error.longest
    if error.limit:
        words += (
            f": the prompt has {error.length} tokens, and this model was loaded with a context of "
            f"{error.limit}; {error.way_out()}"
        )
    return ContextLengthError(words, *sizes)


def require(condition: bool, problem: str) -> None:
    """Raise OptionError with the text `problem` unless `condition` holds."""
    if not condition:
        raise OptionError(problem)


def lacks(job: Job, capability: str) -> str:
    """Return the message for a model that lacks a capability."""
    return f"{job.found.name} does not support {capability}"


def check_ids(token_ids: Sequence[int], loaded: LoadedModel) -> None:
    """Raise OptionError if a token is not in the model's vocabulary."""
    size = loaded.info.vocab_size
    outside = [token for token in token_ids if not 0 <= token < size]
    require(not outside, f"token id {outside[:1]} is not in the model's vocabulary of {size} tokens")
