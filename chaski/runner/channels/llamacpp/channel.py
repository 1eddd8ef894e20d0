"""The near end of a `Channel`, like `EngineChannel`: it answers calls with llama.cpp, in its own threads."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from chaski.chat.defaults import Defaults
from chaski.chat.prompts import Prepared
from chaski.chat.requests import Chat, Embed, Rank
from chaski.errors import OptionError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.ml.backend import HOST, DeviceMemory, Memory
from chaski.names import LLAMA_CPP
from chaski.runner.adapters.adapter_calls import AdapterCall, ListAdapters
from chaski.runner.adapters.adapter_set import AdapterInfo
from chaski.runner.channels.base_channel import ActiveCall, BaseChannel
from chaski.runner.channels.cache_picture import CachePicture
from chaski.runner.channels.llamacpp.completions import AnswerReader, completion, empty_answer
from chaski.runner.channels.llamacpp.lost_ids import LostIds
from chaski.runner.channels.llamacpp.prompts import LlamaPrompts, PromptConfig
from chaski.runner.channels.llamacpp.server import LlamaServer
from chaski.runner.channels.llamacpp.settings import LlamaSettings
from chaski.runner.channels.llamacpp.thoughts import limited_pieces
from chaski.runner.channels.messages import (
    Answerable,
    Describe,
    Info,
    ModelCall,
    ReplyCallback,
    Tokenize,
)
from chaski.runner.engine.live import LiveSequences, TokenTotals
from chaski.runner.engine.outputs import Outputs
from chaski.runner.generation.output_sequences import embeddings
from chaski.runner.prefix.block_calls import Blocks
from chaski.runner.states.state_calls import SavedState, StateCall
from chaski.store.model import find_model
from chaski.text.tokenizer.vocabulary import TokenType, read_vocabulary

__all__ = ["LlamaCppChannel"]

# Number of answers that may wait in addition to those that llama.cpp is computing.
_WAITING = 32


class LlamaCppCall(ActiveCall, eq=False):
    """A call that is cancelled by closing the connection of its answer."""

    _socket: socket.socket | None = None

    def opened(self, connection: socket.socket) -> None:
        """Remember the socket of the answer, so that `cancel` can close it."""
        self._socket = connection
        if self.is_cancelled:
            self.cancel()

    def cancel(self) -> None:
        """Close the connection: llama.cpp then frees the slot."""
        super().cancel()
        if self._socket is not None:
            with suppress(OSError):  # the connection is closed already
                self._socket.shutdown(socket.SHUT_RDWR)


class LlamaCppChannel(BaseChannel[LlamaCppCall]):
    """The `BaseChannel` of a model in llama.cpp.

    Must be created by the main thread. Raises ModelNotFoundError, GGUFError, UnsupportedError,
    OutOfMemoryError, OptionError, or ModelError if llama.cpp cannot load the model.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        options: Mapping[str, Any],
        flush: Callable[[], None],
        reason: str = "it was requested",
    ) -> None:
        super().__init__(flush, LlamaCppCall)
        started = perf_counter()
        found = find_model(model)
        defaults = Defaults.of(found)
        file = open_gguf(found.path)
        self._settings = LlamaSettings.of(file, defaults, options)
        self._settings.check_memory(file)
        vocabulary = read_vocabulary(file.metadata, default_add_bos=False)
        anonymous = _anonymous_bytes()
        self._server = LlamaServer(self._settings)
        config = PromptConfig(len(vocabulary), self._settings.pooling)
        settings = self._settings
        self._prompts = LlamaPrompts(
            file, config, settings.room, defaults, self._server, vocabulary, settings.longest
        )
        hidden = {*vocabulary.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN), *vocabulary.eos_ids}
        self._controls = {token_id: vocabulary.tokens[token_id] for token_id in hidden}
        # Tokens that end an answer are control tokens too, and the text of a grammar never produces them.
        self._spellings = {text: token_id for token_id, text in self._controls.items()}
        self._lost = LostIds(vocabulary, file.get("tokenizer.ggml.model", str, ""))
        self._salts: set[str] = set()
        self._short = ThreadPoolExecutor(2, "chaski-desk")
        self._answers = ThreadPoolExecutor(self._settings.parallel + _WAITING, "chaski-answer")
        weights = self._settings.weight_bytes(file)
        self.info = Info(
            path=str(file.path),
            context=self._settings.context,
            context_reason=self._settings.context_reason,
            max_context=self._settings.longest,
            parallel=self._settings.parallel,
            vocab_size=len(vocabulary),
            chat_template=self._prompts.chat_template,
            load_seconds=perf_counter() - started,
            memory=Memory((DeviceMemory(HOST, weights, max(_anonymous_bytes() - anonymous, 0)),)),
            engine=LLAMA_CPP,
            engine_reason=reason,
            has_vision=self._server.has_vision,
            capabilities=self._prompts.capabilities,
        )

    def close(self) -> None:
        """Accept no more calls, and remove the socket from the file system."""
        super().close()
        self._short.shutdown(wait=False, cancel_futures=True)
        self._answers.shutdown(wait=False, cancel_futures=True)
        self._server.close()

    def _threads(self, call: ModelCall) -> ThreadPoolExecutor:
        """Return the executor of a call. Short calls have a separate one, so they never wait for answers."""
        return self._answers if isinstance(call, Answerable | Embed | Rank) else self._short

    def _write(self, call: Answerable, task: LlamaCppCall) -> None:
        prepared = self._prompts.prepare(call, self._prompts.read_images(call.images))
        if prepared.limits.adapter:
            raise UnsupportedError("the engine llama.cpp does not support adapters; leave them out")
        self._generate(prepared, task.parsed(prepared), task)

    def _generate(self, prepared: Prepared, put: ReplyCallback, task: LlamaCppCall) -> None:
        load_seconds = self.info.load_seconds
        if prepared.limit <= len(prepared.prompt.tokens):
            put(empty_answer(prepared, load_seconds))
            return
        marker = self._server.media_marker
        may_share = self._may_share(prepared.limits.cache_salt)

        def ask(part: Prepared) -> Generator[Mapping[str, Any], None, None]:
            body = completion(part, may_share, self._spellings, marker)
            return self._server.stream("/completion", body, task.opened)

        encode = partial(self._prompts.tokenizer.encode, add_special=False)
        reader = AnswerReader(prepared, self._controls, self._lost, load_seconds)
        for piece in limited_pieces(prepared, ask, encode, self._spellings):
            for event in reader.feed(piece):
                if not task.is_cancelled:
                    put(event)
            self._flush()

    def _may_share(self, cache_salt: str) -> bool:
        """Return whether a prompt may reuse earlier ones: True until a second salt is used.

        llama.cpp has no salts, so the response time would reveal what other users asked.
        """
        if len(self._salts) < 2:
            self._salts.add(cache_salt)
        return self._settings.prefix_cache and len(self._salts) < 2

    def _embed(self, call: Embed | Rank, task: LlamaCppCall) -> None:
        prompts = self._prompts.vector_texts(call)
        found = self._server.ask("/embedding", {"content": prompts, "embd_normalize": -1})
        rows = [each["embedding"][0] for each in sorted(found, key=lambda each: each["index"])]
        vectors = np.array(rows, np.float32)
        task.reply(Outputs(embeddings(vectors, call), sum(map(len, prompts))))

    def _encode_chat(self, chat: Chat) -> Iterable[int]:
        return self._prompts.chat_tokens(chat)

    def _render_chat(self, chat: Chat) -> str:
        return self._prompts.conversation_text(chat)

    def _encode(self, call: Tokenize) -> Iterable[int]:
        return self._prompts.tokens(call.text, call.images, call.add_special, call.parse_special)

    def _describe(self, call: Describe) -> Info:
        return self.info

    def _live(self) -> LiveSequences:
        """Return no sequences: llama.cpp does not report them."""
        return LiveSequences(seconds=perf_counter(), totals=TokenTotals(), num_sequences=0, sequences=())

    def _adapters(self, call: AdapterCall) -> Iterable[AdapterInfo]:
        if isinstance(call, ListAdapters):
            return ()
        raise UnsupportedError("the engine llama.cpp does not support adapters; leave them out")

    def _state(self, call: StateCall) -> SavedState:
        raise UnsupportedError("the engine llama.cpp cannot save or restore states")

    def _picture(self) -> CachePicture:
        raise UnsupportedError("the engine llama.cpp does not report the contents of its cache")

    def _blocks_of(self, request: Answerable) -> Blocks:
        return Blocks((), 0)

    def _blocks(self) -> Blocks:
        return Blocks((), 0)

    def _decode(self, token_ids: Iterable[int]) -> str:
        ids = tuple(token_ids)
        wrong = next((token for token in ids if not 0 <= token < self.info.vocab_size), None)
        if wrong is not None:
            raise OptionError(
                f"token id {wrong} is not in the model's vocabulary of {self.info.vocab_size} tokens"
            )
        shown = [token for token in ids if token not in self._controls]
        return str(self._server.ask("/detokenize", {"tokens": shown})["content"]) if shown else ""


def _anonymous_bytes() -> int:
    """Return the memory of this process outside mapped files, or 0 if the system does not report it."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:"))
    except (OSError, StopIteration):
        return 0
