"""`RemoteModel`: a model of a running server, for use by commands."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from chaski.errors import ChaskiError
from chaski.names import ModelName
from chaski.remote import Remote

if TYPE_CHECKING:
    from chaski.chat.defaults import Defaults
    from chaski.chat.events import Done, Event
    from chaski.runner.prefix.use import TierUse

__all__ = ["RemoteModel"]


class RemoteModel:
    """A model of a server, with the parts of `LLM` that a terminal conversation uses."""

    def __init__(self, remote: Remote, name: str) -> None:
        """Connect to a model of a server. Raises ModelNotFoundError if the server lacks it."""
        from chaski.chat.defaults import Defaults

        shown = remote.post("/api/show", {"model": name})
        info = shown.get("model_info") or {}
        architecture = info.get("general.architecture", "")
        self._remote = remote
        self._name = name
        self.path = f"{name} at {remote.url}"
        # The model may be loaded with a smaller context. The server reports it with its first answer.
        self.context: int = info.get(f"{architecture}.context_length", 0)
        self.vocab_size: int = info.get(f"{architecture}.vocab_size", 0)
        self.chat_template: str | None = shown.get("template")
        self.defaults: Defaults = Defaults(system=shown.get("system"), opening=shown.get("messages") or ())
        self.capabilities: tuple[str, ...] = tuple(shown.get("capabilities") or ())
        self.has_vision: bool = "vision" in self.capabilities
        self.makes_vectors: bool = "embedding" in self.capabilities
        self.keep_alive: str | None = None  # None: the server's default

    def save(self, name: str, settings: Mapping[str, Any]) -> None:
        """Create a model from this one with settings in the format of /api/create."""
        for line in self._remote.lines("/api/create", {"model": name, "from": self._name, **settings}):
            if "error" in line:
                raise ChaskiError(str(line["error"]))

    def keep_state(self, name: str, think: bool | str | None) -> tuple[int, int]:
        """Keep the state of a model's initial conversation; return its tokens and bytes."""
        asked = {"model": name} | ({} if think is None else {"think": think})
        found = self._remote.post("/api/states", asked)
        return int(found["tokens"]), int(found["size"])

    def close(self) -> None:
        """Do nothing: the server decides when to unload the model."""

    def embed(self, text: str, dimensions: int | None, truncate: bool) -> list[float]:
        """Return the embedding vector of a text."""
        asked = {"model": self._name, "input": text, "dimensions": dimensions, "truncate": truncate}
        found: list[float] = self._remote.post("/api/embed", asked | self._staying)["embeddings"][0]
        return found

    def stream(
        self, prompt: str, images: Sequence[bytes] = (), **options: Any
    ) -> Generator[Event, None, None]:
        """Continue a raw prompt, preceded by image files."""
        asked = {"prompt": prompt, "raw": True, "images": [_base64(image) for image in images]}
        return self._events("/api/generate", asked, options)

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        think: bool | str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> Generator[Event, None, None]:
        """Answer a conversation, whose messages may contain `images` as file contents.

        think: whether, or how much, the model thinks; None uses its default."""
        turns = [
            {**turn, "images": [_base64(image) for image in turn.get("images", ())]} for turn in messages
        ]
        asked: dict[str, Any] = {"messages": turns}
        if think is not None:
            asked["think"] = think
        if tools:
            asked["tools"] = tools
        return self._events("/api/chat", asked, options)

    def prefixes(self) -> tuple[TierUse, ...]:
        """Return the contents of each prefix cache tier, or nothing if the server has not loaded the
        model."""
        from chaski.runner.prefix.use import TierUse

        for model in self._remote.get("/api/ps")["models"]:
            if ModelName.parse(model["name"]) == ModelName.parse(self._name):
                return tuple(
                    TierUse(tier, use["blocks"], use["tokens"], use["bytes"], use["max_bytes"])
                    for tier, use in model.get("prefix_cache", {}).items()
                )
        return ()

    @property
    def _staying(self) -> dict[str, str]:
        return {} if self.keep_alive is None else {"keep_alive": self.keep_alive}

    def _events(
        self, path: str, asked: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Generator[Event, None, None]:
        from chaski.chat.events import Text, Thinking, ToolCall

        given = dict(options)
        outside = {"truncate": given.pop("truncate", False), "format": given.pop("format", None)}
        body = {"model": self._name, **asked, **outside, **self._staying, "options": given}
        with closing(self._remote.lines(path, body)) as lines:
            for line in lines:
                message = line.get("message") or {}
                if thinking := message.get("thinking"):
                    yield Thinking(thinking)
                for call in message.get("tool_calls") or ():
                    yield ToolCall(call["function"]["name"], call["function"]["arguments"])
                if text := message.get("content") or line.get("response"):
                    yield Text(text)
                if line.get("done"):
                    self.context = line.get("context_length", self.context)
                    yield _done(line)
                    return
        raise ChaskiError(f"{self._remote.url} ended its answer early")


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _done(line: Mapping[str, Any]) -> Done:
    from chaski.chat.events import Done

    tiers = line.get("cached_tokens_by_tier") or {}
    return Done(
        reason="length" if line.get("done_reason") == "length" else "stop",
        prompt_tokens=line.get("prompt_eval_count", 0),
        cached_tokens=line.get("prompt_cached_count", 0),
        memory_tokens=tiers.get("memory", 0),
        disk_tokens=tiers.get("disk", 0),
        generated_tokens=line.get("eval_count", 0),
        thinking_tokens=line.get("thinking_count", 0),
        proposed_tokens=line.get("proposed_count", 0),
        accepted_tokens=line.get("accepted_count", 0),
        dropped_tokens=line.get("prompt_dropped_count", 0),
        shifted_tokens=line.get("shifted_count", 0),
        load_seconds=line.get("load_duration", 0) / 1e9,
        prefill_seconds=line.get("prompt_eval_duration", 0) / 1e9,
        decode_seconds=line.get("eval_duration", 0) / 1e9,
    )
