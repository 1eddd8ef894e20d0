"""A running server, as commands see it: `Remote` asks it, `RemoteModel` is one of its models."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from chaski.address import Address
from chaski.errors import ChaskiError, ModelNotFoundError

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from chaski.chat.defaults import Defaults
    from chaski.chat.events import Done, Event

__all__ = ["Remote", "RemoteModel", "chosen_server", "running_server"]

# A server on this machine answers at once, or is not there.
_KNOCK_SECONDS = 1.0
_MAX_LINE = 8 << 20
_USUAL_ADDRESS = ""  # as `Address` reads nothing


@dataclass(frozen=True, slots=True)
class Remote:
    """A server at an address, and the key that it may want."""

    address: Address
    key: str | None

    @property
    def url(self) -> str:
        return self.address.url

    def is_there(self) -> bool:
        """Return whether the server answers."""
        try:
            with self._ask("HEAD", "/", None, _KNOCK_SECONDS) as response:
                return response.status == 200
        except ChaskiError:
            return False

    def get(self, path: str) -> Any:
        """The object at an address. Raises ChaskiError."""
        with self._ask("GET", path, None) as response:
            return _object(response.read())

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to an object. Raises ModelNotFoundError, or ChaskiError with what the server says."""
        with self._ask("POST", path, body) as response:
            return _object(response.read())

    def tell(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        """Send a request whose answer has no body. Raises as `post` does."""
        with self._ask(method, path, body) as response:
            response.read()

    def has(self, path: str) -> bool:
        """Return whether the server has anything at the address."""
        try:
            with self._ask("HEAD", path, None):
                return True
        except ModelNotFoundError:
            return False

    def upload(self, path: str, file: Path) -> None:
        """Send the bytes of a file. Raises ChaskiError."""
        with file.open("rb") as data, self._ask("POST", path, data, None, file.stat().st_size) as response:
            response.read()

    def lines(self, path: str, body: Mapping[str, Any]) -> Generator[Any, None, None]:
        """The objects of a stream as they come; closing it stops the work."""
        with self._ask("POST", path, body) as response:
            while line := response.readline(_MAX_LINE):
                found = _object(line)
                if found.get("error"):
                    raise ChaskiError(found["error"])
                yield found

    @contextmanager
    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | BinaryIO | None,
        timeout: float | None = None,
        size: int | None = None,
    ) -> Iterator[HTTPResponse]:
        """The response to an object, or to a file of that size."""
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        address = self.address
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        prefix = f"/{address.path}" if address.path else ""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = json.dumps(body).encode() if isinstance(body, Mapping) else body
        if size is not None:
            headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        with closing(kind(address.reachable_host, address.port, timeout=timeout)) as connection:
            try:
                connection.request(method, prefix + path, data, headers)
                response = connection.getresponse()
                if response.status >= 400:
                    raise _failure(response)
                yield response
            except (OSError, HTTPException) as error:
                raise ChaskiError(
                    f"could not connect to a server at {self.url} ({error}); run 'chaski serve' to start one"
                ) from None


class RemoteModel:
    """A model of a server, with what a conversation on the terminal needs of an `LLM`."""

    def __init__(self, remote: Remote, name: str) -> None:
        """Connect to a model of a server. Raises ModelNotFoundError if the server lacks it."""
        from chaski.chat.defaults import Defaults

        shown = remote.post("/api/show", {"model": name})
        info = shown.get("model_info") or {}
        architecture = info.get("general.architecture", "")
        self._remote = remote
        self._name = name
        self.path = f"{name} at {remote.url}"
        self.context: int = info.get(f"{architecture}.context_length", 0)
        self.vocab_size: int = info.get(f"{architecture}.vocab_size", 0)
        self.chat_template: str | None = shown.get("template")
        self.defaults: Defaults = Defaults(system=shown.get("system"), opening=shown.get("messages") or ())
        capabilities = shown.get("capabilities") or ()
        self.has_vision: bool = "vision" in capabilities
        self.makes_vectors: bool = "embedding" in capabilities
        self.keep_alive: str | None = None  # how long it stays after each answer; None as the server wants

    def save(self, name: str, settings: Mapping[str, Any]) -> None:
        """Make a model of this one with settings, as /api/create takes them."""
        for line in self._remote.lines("/api/create", {"model": name, "from": self._name, **settings}):
            if "error" in line:
                raise ChaskiError(str(line["error"]))

    def keep_state(self, name: str, think: bool | str | None) -> tuple[int, int]:
        """Keep the state of the conversation that a model begins with -> its tokens and bytes."""
        asked = {"model": name} | ({} if think is None else {"think": think})
        found = self._remote.post("/api/states", asked)
        return int(found["tokens"]), int(found["size"])

    def close(self) -> None:
        """The server keeps it as long as it wants to."""

    def embed(self, text: str, dimensions: int | None, truncate: bool) -> list[float]:
        """The vector of a text."""
        asked = {"model": self._name, "input": text, "dimensions": dimensions, "truncate": truncate}
        found: list[float] = self._remote.post("/api/embed", asked | self._staying)["embeddings"][0]
        return found

    def stream(
        self, prompt: str, images: Sequence[bytes] = (), **options: Any
    ) -> Generator[Event, None, None]:
        """Continue a prompt as it is, behind the files of images."""
        asked = {"prompt": prompt, "raw": True, "images": [_base64(image) for image in images]}
        return self._events("/api/generate", asked, options)

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], think: bool | str | None = None, **options: Any
    ) -> Generator[Event, None, None]:
        """Answer a conversation, whose messages may have `images`, as files. think: None is usual."""
        turns = [
            {**turn, "images": [_base64(image) for image in turn.get("images", ())]} for turn in messages
        ]
        asked: dict[str, Any] = {"messages": turns}
        if think is not None:
            asked["think"] = think
        return self._events("/api/chat", asked, options)

    @property
    def _staying(self) -> dict[str, str]:
        return {} if self.keep_alive is None else {"keep_alive": self.keep_alive}

    def _events(
        self, path: str, asked: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Generator[Event, None, None]:
        from chaski.chat.events import Text, Thinking

        given = dict(options)
        outside = {"truncate": given.pop("truncate", False), "format": given.pop("format", None)}
        body = {"model": self._name, **asked, **outside, **self._staying, "options": given}
        with closing(self._remote.lines(path, body)) as lines:
            for line in lines:
                message = line.get("message") or {}
                if thinking := message.get("thinking"):
                    yield Thinking(thinking)
                if text := message.get("content") or line.get("response"):
                    yield Text(text)
                if line.get("done"):
                    yield _done(line)
                    return
        raise ChaskiError(f"{self._remote.url} broke off its answer")


def chosen_server() -> Remote | None:
    """The server that `OLLAMA_HOST` names; None where it is not set, and commands work on the store here."""
    from chaski.env import Environment

    return running_server() if Environment.read().host else None


def running_server() -> Remote:
    """The server that the environment names, else the one at the usual address, whether it runs or not."""
    from chaski.env import Environment

    environment = Environment.read()
    return Remote(Address.parse(environment.host or _USUAL_ADDRESS), environment.api_key)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _failure(response: HTTPResponse) -> ChaskiError:
    try:
        text = json.loads(response.read(_MAX_LINE))["error"]
    except (ValueError, LookupError, TypeError):
        text = f"the server answered {response.status} {response.reason}"
    return ModelNotFoundError(text) if response.status == 404 else ChaskiError(text)


def _object(data: bytes) -> Any:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ChaskiError("the server answered something else than a JSON object")
    return found


def _done(line: Mapping[str, Any]) -> Done:
    from chaski.chat.events import Done

    return Done(
        reason="length" if line.get("done_reason") == "length" else "stop",
        prompt_tokens=line.get("prompt_eval_count", 0),
        cached_tokens=line.get("prompt_cached_count", 0),
        generated_tokens=line.get("eval_count", 0),
        dropped_tokens=line.get("prompt_dropped_count", 0),
        shifted_tokens=line.get("shifted_count", 0),
        load_seconds=line.get("load_duration", 0) / 1e9,
        prefill_seconds=line.get("prompt_eval_duration", 0) / 1e9,
        decode_seconds=line.get("eval_duration", 0) / 1e9,
    )
