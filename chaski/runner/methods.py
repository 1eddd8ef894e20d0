"""The methods that every loaded model has, in this process or another, with their options.

Each method turns its arguments into typed requests, and passes them to one of a few primitives. The types of
results are parameters: a model that blocks returns an `Answer`, one for event loops an awaitable of it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as Items
from types import TracebackType
from typing import Generic, Self, TypeVar, Unpack, cast

import numpy as np
import numpy.typing as npt

from chaski.chat.adapter_choices import AdapterOption
from chaski.chat.answer import Answer, collect
from chaski.chat.arguments import path_text
from chaski.chat.arguments import token_ids as checked_ids
from chaski.chat.beams import require_whole
from chaski.chat.formats import Message
from chaski.chat.images import ImageSource, image_list
from chaski.chat.messages import Tool, is_conversation
from chaski.chat.options import GenerateOptions, parse_options
from chaski.chat.ranking import Ranked, checked_count, ranked
from chaski.chat.requests import (
    Embed,
    Rank,
    chat_request,
    embed_request,
    generate_request,
    rank_request,
    sendable,
)
from chaski.chat.several import ProgressOption, Request, each_time, naming, request_list, suffix_list
from chaski.errors import OptionError
from chaski.runner.adapters.adapter_calls import AdapterCall, ListAdapters, LoadAdapter, UnloadAdapter
from chaski.runner.adapters.adapter_set import AdapterInfo
from chaski.runner.channels.messages import Detokenize, Tokenize
from chaski.runner.keywords import answer_options, plain
from chaski.runner.states.state_calls import (
    KeepPrefixes,
    LoadState,
    SavedState,
    SaveState,
    StateCall,
    TakePrefixes,
)
from chaski.runner.streams import EventStream

__all__ = ["BlockingMethods", "ModelMethods"]

AnswerT = TypeVar("AnswerT")
EventsT = TypeVar("EventsT")
AnswersT = TypeVar("AnswersT")
ArrayT = TypeVar("ArrayT")
TokensT = TypeVar("TokensT")
TextT = TypeVar("TextT")
RankingT = TypeVar("RankingT")
AdaptersT = TypeVar("AdaptersT")
StateT = TypeVar("StateT")


class ModelMethods(
    ABC, Generic[AnswerT, EventsT, AnswersT, ArrayT, TokensT, TextT, RankingT, AdaptersT, StateT]
):
    """The methods of a loaded model. Safe to use from several threads."""

    def generate(
        self,
        prompt: str | Items[int],
        images: Items[ImageSource] = (),
        *,
        suffix: str = "",
        can_reload: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> AnswerT:
        """Continue `prompt`: a text, taken as it is with BOS before it where the file asks for it, or ids.

        With a `suffix`, write the text that belongs between `prompt` and it, by the model's template or the
        tokens that its file names for this; the answer is that of `suffix` in Ollama's and OpenAI's APIs.

        `images` (bytes of image files, or paths) come where the text says `[img-0]`, `[img-1]`, ...; those
        that it does not place come in front. Raises OptionError for a prompt that does not fit, unless
        `truncate` is set, and UnsupportedError for images if the model does not see, and for a suffix if it
        cannot fill in.

        With `can_reload` nothing is cut: where the prompt and an answer of usual length do not fit into the
        context, ContextLengthError has the `length` with which the caller may load the model again.
        """
        request = generate_request(prompt, suffix, answer_options(options), can_reload)
        return self._answer(Request(request, image_list(images)))

    def stream(
        self,
        prompt: str | Items[int],
        images: Items[ImageSource] = (),
        *,
        suffix: str = "",
        can_reload: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> EventsT:
        """`generate` in pieces, as they are made. Raises OptionError for a beam search, which has none."""
        options = answer_options(options)
        require_whole(options)
        request = generate_request(prompt, suffix, options, can_reload)
        return self._stream(Request(request, image_list(images)))

    def chat(
        self,
        messages: Items[Message | Answer],
        tools: Items[Tool] | None = None,
        *,
        think: bool | str | None = None,
        images: Items[ImageSource] = (),
        can_reload: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> AnswerT:
        """Answer a conversation, written with the model's own template and taken apart by its format.

        A message may also be an `Answer`, or an object with the same fields, such as a Pydantic model. The
        messages of the model's `defaults` go before it. The `images` of a message (a list of bytes or
        paths) come at the parts `{"type": "image"}` of its content, or else in front of it. `images` here
        belong to the last message.

        A tool is a mapping in the format of OpenAI's API, or a function, which is described by its name, type
        hints and docstring with a section `Args:`; `answer.tool_calls` has the calls, and no function is run.

        `think` sets whether, or how much, the model thinks; models that can think do so by default. The
        option `reasoning_budget` is the largest number of tokens of its thoughts. `can_reload` is as in
        `generate`.
        """
        given = answer_options(options)
        return self._answer(Request(*chat_request(messages, tools, given, think, images, can_reload)))

    def stream_chat(
        self,
        messages: Items[Message | Answer],
        tools: Items[Tool] | None = None,
        *,
        think: bool | str | None = None,
        images: Items[ImageSource] = (),
        can_reload: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> EventsT:
        """`chat` in pieces, as they are made: `Text`, `Thinking` and `ToolCall`. As for `stream`."""
        options = answer_options(options)
        require_whole(options)
        return self._stream(Request(*chat_request(messages, tools, options, think, images, can_reload)))

    def generate_many(
        self,
        prompts: Items[str | Items[int]],
        *,
        suffix: str | Items[str] = "",
        n: int = 1,
        progress: ProgressOption = False,
        **options: Unpack[GenerateOptions],
    ) -> AnswersT:
        """Continue several prompts, `parallel` at a time -> their answers in order, `n` for each prompt.

        Each answer is the one that `generate` gives alone. With a `seed`, the answers to one prompt have that
        seed and the ones after it; with `num_beams` they are the best ones of one search, the best one first,
        and `n` is at most that. `suffix` is one for all prompts, or a list of one for each.
        `progress=True` draws a bar; a function is called with the done share, from 0 to 1. An error names its
        prompt, counted from 0, and ends the call: the other answers are not computed any further, and other
        calls continue.
        """
        options = answer_options(options)
        parse_options(options)
        found = request_list(prompts, "prompts")
        pairs = zip(found, suffix_list(suffix, len(found)), strict=True)
        asked = []
        for number, (prompt, behind) in enumerate(pairs):
            with naming(f"prompt {number}"):
                asked.append(Request(generate_request(prompt, behind, options)))
        return self._answers(each_time(asked, n, "prompt"), progress)

    def chat_many(
        self,
        conversations: Items[Items[Message | Answer]],
        tools: Items[Tool] | None = None,
        *,
        think: bool | str | None = None,
        n: int = 1,
        progress: ProgressOption = False,
        **options: Unpack[GenerateOptions],
    ) -> AnswersT:
        """Answer several conversations, as `generate_many` continues prompts; `think` is as for `chat`."""
        options = answer_options(options)
        parse_options(options)
        found = request_list(conversations, "conversations")
        asked = []
        for number, messages in enumerate(found):
            with naming(f"conversation {number}"):
                asked.append(Request(*chat_request(messages, tools, options, think)))
        return self._answers(each_time(asked, n, "conversation"), progress)

    def embed(
        self,
        texts: str | Items[str | Items[int]],
        *,
        truncate: bool = False,
        normalize: bool = True,
        dimensions: int | None = None,
    ) -> ArrayT:
        """One vector a text (or list of ids) -> (len(texts), size), of length 1 each with `normalize`.

        Texts are computed together, `parallel` at a time. `truncate` cuts off the end of a text that does not
        fit into the context. `dimensions` keeps that many first elements of each vector, whose length is then
        made 1 again; some models are trained for that. Raises UnsupportedError for a model that makes text,
        and ModelError for vectors that are not all finite numbers.
        """
        return self._array(embed_request(texts, truncate, normalize, plain(dimensions)))

    def score(self, query: str, documents: Items[str], *, truncate: bool = False) -> ArrayT:
        """Relevance of each document to `query`, from 0 to 1 -> (len(documents),) float32.

        `truncate` cuts off the end of a document that does not fit into the context. Raises UnsupportedError
        for a model that does not rank.
        """
        return self._array(rank_request(query, documents, truncate))

    def rerank(
        self, query: str, documents: Items[str], *, top_n: int | None = None, truncate: bool = False
    ) -> RankingT:
        """The documents that answer `query` best, the best one first; `top_n` of them, or all.

        Scores are those of `score`; documents that are equally good stay in their order.
        """
        return self._ranking(rank_request(query, documents, truncate), checked_count(plain(top_n)))

    def tokenize(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = True,
        images: Items[ImageSource] = (),
    ) -> TokensT:
        """The ids of a text, with BOS if the file asks for it.

        `parse_special` reads the spelling of control tokens as those tokens. `images` come as in `generate`;
        a row of image k is the id -1 - k, and such ids with their images are a prompt again.
        """
        if not isinstance(text, str):
            raise OptionError(f"the text is {text!r:.80}; it must be a text")
        return self._tokens(Tokenize(text, add_special, parse_special), image_list(images))

    def detokenize(self, token_ids: Iterable[int]) -> TextT:
        """The text of ids; control tokens are left out."""
        return self._text(
            Detokenize(tuple(checked_ids(token_ids, "the text", "given as a list of token ids")))
        )

    def load_adapter(self, name: str, path: str | os.PathLike[str]) -> AdaptersT:
        """Read a LoRA adapter, a GGUF file, under the name that requests use -> all adapters afterwards.

        It replaces an earlier adapter of that name; running requests keep theirs. Raises AdapterError for a
        file that is no adapter for this model, GGUFError, ModelNotFoundError, OptionError, OutOfMemoryError,
        and UnsupportedError where the engine takes no adapters.
        """
        return self._adapters(LoadAdapter(name, path_text(path, "the adapter")))

    def unload_adapter(self, name: str) -> AdaptersT:
        """Forget an adapter -> the remaining ones. Raises AdapterNotFoundError."""
        return self._adapters(UnloadAdapter(name))

    def adapters(self) -> AdaptersT:
        """Return the adapters that requests may name, in the order in which they were loaded."""
        return self._adapters(ListAdapters())

    def save_state(
        self,
        path: str | os.PathLike[str],
        prompt: str | Items[int] | Items[Message | Answer],
        images: Items[ImageSource] = (),
        *,
        tools: Items[Tool] | None = None,
        think: bool | str | None = None,
        cache_salt: str = "",
        adapter: AdapterOption | None = None,
        no_store: bool = False,
    ) -> StateT:
        """Write the model's state of a prompt to a file, so that it is not computed again.

        `prompt` is a text or ids, as for `generate`, or the messages of a conversation, as for `chat`. Parts
        that are not computed yet are computed first. The file replaces an earlier one at `path`; only its
        owner may read it. The result has the `tokens` that prompts take over with it, the bytes of the file,
        and the seconds that it took to write.

        Raises StateError where the file cannot be written, UnsupportedError where the prefix cache is off,
        and what `generate` and `chat` raise.
        """
        options: GenerateOptions = {}
        if cache_salt:
            options["cache_salt"] = cache_salt
        if no_store:
            options["no_store"] = no_store
        if adapter is not None:
            options["adapter"] = adapter
        if is_conversation(prompt):
            messages = cast("Items[Message | Answer]", prompt)
            call = sendable(*chat_request(messages, tools, options, think, images))
        elif tools is not None or think is not None:
            raise OptionError("tools and think are for the messages of a conversation")
        else:
            request = generate_request(cast("str | Items[int]", prompt), "", options)
            call = sendable(request, image_list(images))
        return self._state(SaveState(call, path_text(path, "the file of the state")))

    def load_state(self, path: str | os.PathLike[str], *, cache_salt: str = "") -> StateT:
        """Load a saved state into memory, where prompts that begin with its tokens reuse it.

        The state must be of the same model file, version and types of keys and values, and of the same
        `cache_salt`; answers keep the bits that they have without it. The result is as for `save_state`.

        Raises FormatError for a damaged file, StateError for one that is missing, of another model or salt,
        or larger than the prefix cache may be, and UnsupportedError where the prefix cache is off.
        """
        return self._state(LoadState(path_text(path, "the file of the state"), cache_salt))

    def keep_prefixes(self, path: str) -> StateT:
        """Write the prefix cache in memory to an existing file, for a model that replaces this one."""
        return self._state(KeepPrefixes(path))

    def take_prefixes(self, path: str) -> StateT:
        """Take such a file into memory; nothing if it is not of this model."""
        return self._state(TakePrefixes(path))

    @abstractmethod
    def _state(self, call: StateCall) -> StateT:
        """Save or load a state."""

    @abstractmethod
    def _adapters(self, call: AdapterCall) -> AdaptersT:
        """Load, unload or list adapters."""

    @abstractmethod
    def _answer(self, request: Request) -> AnswerT:
        """Compute a whole answer."""

    @abstractmethod
    def _stream(self, request: Request) -> EventsT:
        """Check a request at once, and yield the events of its answer as they are made."""

    @abstractmethod
    def _answers(self, requests: Items[Request], progress: ProgressOption) -> AnswersT:
        """Compute whole answers together; the first error names its request, and cancels the others."""

    @abstractmethod
    def _array(self, call: Embed | Rank) -> ArrayT:
        """Compute the vectors of texts, or the relevance of documents."""

    @abstractmethod
    def _ranking(self, call: Rank, top_n: int | None) -> RankingT:
        """Sort documents by their relevance."""

    @abstractmethod
    def _tokens(self, call: Tokenize, images: Items[ImageSource]) -> TokensT:
        """Return the ids of a text."""

    @abstractmethod
    def _text(self, call: Detokenize) -> TextT:
        """Return the text of ids."""


class BlockingMethods(
    ModelMethods[
        Answer,
        EventStream,
        list[Answer],
        npt.NDArray[np.float32],
        list[int],
        str,
        list[Ranked],
        list[AdapterInfo],
        SavedState,
    ]
):
    """The methods of a model whose calls return when all is computed.

    It is closed by `close`, or as a context manager.
    """

    @abstractmethod
    def check_open(self) -> None:
        """Raise ClosedError after `close`."""

    @abstractmethod
    def close(self) -> None:
        """Release the model's memory. Running and later calls raise ClosedError."""

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, request: Request) -> Answer:
        return collect(self._stream(request))

    def _ranking(self, call: Rank, top_n: int | None) -> list[Ranked]:
        return ranked(call.documents, self._array(call).tolist())[:top_n]
