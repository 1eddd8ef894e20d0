"""`ChatService`: answer typed requests with typed events, for all APIs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager

from msgspec import Struct, field
from msgspec.structs import replace

from chaski.chat.events import Done, PromptScores, PromptTokens, ToolCall
from chaski.errors import OptionError, SamplingError
from chaski.runner.channels.messages import Answerable
from chaski.server.answering.events import AnswerPiece, Delta, Finish, Prompted, ServiceEvents
from chaski.server.answering.jobs import Job, Jobs, chat_call, check_ids, generate_call, require
from chaski.server.answering.receipts import ReceiptSigner
from chaski.server.answering.requests import ChatRequest, GenerateRequest, ModelRequest
from chaski.server.answering.scores import prompted_of, require_few_scores, score_of
from chaski.server.models.loaded import LoadedModel

__all__ = ["ChatService"]

_OPTION = re.compile(r"option (['\"]?)(\w+)\1|options (\w+) and (\w+)")


class ChatService:
    """Service that answers conversations and prompts. Use it in one event loop only."""

    def __init__(self, jobs: Jobs, signer: ReceiptSigner) -> None:
        self._jobs = jobs
        self._signer = signer

    async def answer(self, request: ChatRequest | GenerateRequest, client: str) -> ServiceEvents:
        """Answer a conversation, or a prompt, or continue the prompt."""
        with _named_as_given(request.given_as):
            call: Answerable
            if isinstance(request, ChatRequest):
                job = await self._jobs.begin(request, client, "chat")
                require(job.info.makes_text, f'"{request.model}" does not support chat')
                call, answer = await chat_call(job, request), _Answer()
            else:
                job = await self._jobs.begin(request, client, "text_completion")
                require(job.info.makes_text, f'"{request.model}" does not support generate')
                call = await generate_call(job, request)
                answer = _Answer(request.prompt, request.echoes, request.returns_context)

            async def ask(loaded: LoadedModel, can_reload: bool) -> ServiceEvents:
                if isinstance(request, GenerateRequest) and request.token_ids:
                    check_ids(request.token_ids, loaded)
                    answer.prompt = await loaded.model.detokenize(request.token_ids) if request.echoes else ""
                own = replace(call, can_reload=can_reload)
                async with aclosing(self._answer(job, loaded, own, answer)) as events:
                    async for event in events:
                        yield event

            async with aclosing(self._jobs.ask(job, client, ask)) as events:
                async for event in events:
                    yield event

    async def load(self, request: ModelRequest, client: str) -> float:
        """Load a model without a prompt. Returns the seconds that this took."""
        job = await self._jobs.begin(request, client, "load")
        async with self._jobs.use(job, client):
            return job.seconds

    async def unload(self, label: str) -> None:
        """Unload a model as soon as no request uses it."""
        found = await asyncio.to_thread(self._jobs.catalog.find, label)
        await self._jobs.models.expire(found.model.path)

    async def _answer(
        self, job: Job, loaded: LoadedModel, call: Answerable, answer: _Answer
    ) -> ServiceEvents:
        """Yield the events of a call as events of the server."""
        load_seconds = job.seconds
        if job.request.logprobs or "prompt_logprobs" in call.options:
            await asyncio.to_thread(lambda: job.info.tokenizer)
        async with aclosing(loaded.model.events(call)) as events:
            async for event in events:
                self._jobs.recorder.note(job.record, event)
                match event:
                    case PromptTokens():
                        answer.prompt_ids = event.token_ids
                        answer.prompt_tokens = event.count
                        if (top := call.options.get("prompt_logprobs")) is not None:
                            require_few_scores(event.count, top)
                        if answer.echoes and "prompt_logprobs" not in call.options:
                            yield Delta((), (), event.count, Prompted(answer.prompt))
                    case PromptScores():
                        told = await asyncio.to_thread(
                            prompted_of,
                            answer.prompt,
                            answer.prompt_ids[0],
                            event.logprobs,
                            job.info.tokenizer,
                        )
                        yield Delta((), (), answer.prompt_tokens, told)
                    case Done():
                        if event.receipt is not None:
                            event = await asyncio.to_thread(self._signer.done, event)
                        yield answer.finish(event, loaded.info.context, load_seconds, job.seconds)
                    case _:
                        if delta := answer.delta(event, job):
                            yield delta


class _Answer(Struct):
    """The state of a running answer.

    prompt         text of the prompt, kept if the answer repeats it (`echoes`)
    keeps_ids      whether `Finish` contains the token ids of prompt and answer
    """

    prompt: str = ""
    echoes: bool = False
    keeps_ids: bool = False
    prompt_tokens: int = 0
    prompt_ids: Sequence[int] = ()
    _written: list[int] = field(default_factory=list)
    _called: bool = False

    def delta(self, piece: AnswerPiece, job: Job) -> Delta | None:
        """Return the delta of a piece of the answer; None if it has nothing to show."""
        if self.keeps_ids:
            self._written += piece.token_ids
        self._called = self._called or isinstance(piece, ToolCall)
        is_shown = isinstance(piece, ToolCall) or bool(piece.text)
        if not (is_shown or piece.logprobs):
            return None
        scores = [score_of(sampled, job.info.tokenizer) for sampled in piece.logprobs]
        return Delta([piece] if is_shown else [], scores, self.prompt_tokens)

    def finish(self, done: Done, context: int, load_seconds: float, total_seconds: float) -> Finish:
        """Return the last event of the answer."""
        return Finish(
            done=done,
            called=self._called,
            context=context,
            dropped=done.dropped_tokens,
            thought=done.thinking_tokens,
            token_ids=[*self.prompt_ids, *self._written] if self.keeps_ids else None,
            load_seconds=load_seconds,
            total_seconds=total_seconds,
        )


@contextmanager
def _named_as_given(given_as: Mapping[str, str]) -> Iterator[None]:
    """Let errors of options name the fields that gave them: `guided_regex`, not `option regex`."""

    def renamed(found: re.Match[str]) -> str:
        if found[2]:
            return given_as.get(found[2], found[0])
        if given_as.keys().isdisjoint(found.group(3, 4)):
            return found[0]
        return " and ".join(given_as.get(name, f"option {name}") for name in found.group(3, 4))

    try:
        yield
    except (OptionError, SamplingError) as error:
        if type(error) not in (OptionError, SamplingError):
            raise
        raise type(error)(_OPTION.sub(renamed, str(error))) from None
