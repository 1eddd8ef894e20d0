"""`Remote`: the commands' client of a running server."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import Struct

from chaski.address import Address
from chaski.errors import ChaskiError, ModelNotFoundError, OptionError
from chaski.names import ModelName

if TYPE_CHECKING:
    from http.client import HTTPResponse

__all__ = ["Remote", "chosen_server", "running_server"]

# A server on this machine answers immediately or does not run.
_KNOCK_SECONDS = 1.0
_MAX_LINE = 8 << 20
_USUAL_ADDRESS = ""  # `Address` parses it to its default


class Remote(Struct, frozen=True):
    """A server at an address, and the key that it may require."""

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

    def get(self, path: str, patience: float | None = None) -> Any:
        """GET a JSON object. Raises ChaskiError, also after `patience` seconds without an answer."""
        with self._ask("GET", path, None, patience) as response:
            return _object(response.read())

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST a JSON object; return the answer. Raises ModelNotFoundError or another ChaskiError."""
        with self._ask("POST", path, body) as response:
            return _object(response.read())

    def reply(self, path: str, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], Any]:
        """POST a JSON object; return status, headers (names in lower case) and object of any answer.

        Raises ChaskiError if there is no server or its answer is not JSON.
        """
        with self._exchange("POST", path, body) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return response.status, headers, _object(response.read())

    def tell(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        """Send a request whose answer has no body. Raises the errors of `post`."""
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
        """POST a JSON object; yield the objects of the streamed answer. Closing it stops the work."""
        with self._ask("POST", path, body) as response:
            yield from _objects(response, body)

    def follow(self, path: str, patience: float) -> Generator[Any, None, None]:
        """GET a stream; yield its objects until the server ends it.

        Raises ChaskiError, also after `patience` seconds without data.
        """
        with self._ask("GET", path, None, patience) as response:
            yield from _objects(response)

    @contextmanager
    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | BinaryIO | None,
        timeout: float | None = None,
        size: int | None = None,
    ) -> Iterator[HTTPResponse]:
        """Send an object, or a file of that size; provide the response. Raises the error of a refusal."""
        with self._exchange(method, path, body, timeout, size) as response:
            if response.status >= 400:
                raise _failure(response, body)
            yield response

    @contextmanager
    def _exchange(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | BinaryIO | None,
        timeout: float | None = None,
        size: int | None = None,
    ) -> Iterator[HTTPResponse]:
        """Provide the response of any status. Raises ChaskiError if there is no server."""
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
                yield connection.getresponse()
            except (OSError, HTTPException) as error:
                raise ChaskiError(
                    f"could not connect to a server at {self.url} ({error}); run 'chaski serve' to start one"
                ) from None


def chosen_server() -> Remote | None:
    """Return the server named by `OLLAMA_HOST`. None if unset: commands then use the local store."""
    from chaski.env import Environment

    return running_server() if Environment.read().host else None


def running_server() -> Remote:
    """Return the server named by the environment, else at the default address. It may not be running."""
    from chaski.env import Environment

    environment = Environment.read()
    return Remote(Address.parse(environment.host or _USUAL_ADDRESS), environment.api_key)


def _failure(response: HTTPResponse, body: Mapping[str, Any] | BinaryIO | None) -> ChaskiError:
    try:
        text = json.loads(response.read(_MAX_LINE))["error"]
    except (ValueError, LookupError, TypeError):
        text = f"the server answered {response.status} {response.reason}"
    text = _as_typed(text, body)
    return ModelNotFoundError(text) if response.status == 404 else ChaskiError(text)


def _as_typed(text: str, body: Mapping[str, Any] | BinaryIO | None) -> str:
    """Return a message of a server with the name of the model as the user typed it."""
    typed = body.get("model") if isinstance(body, Mapping) else None
    with suppress(OptionError):
        name = ModelName.parse(str(typed or ""))
        for form in (str(name), name.short):
            text = re.sub(rf"(?<![\w./:-]){re.escape(form)}(?![\w./:-])", lambda _: name.typed, text)
    return text


def _objects(response: HTTPResponse, body: Mapping[str, Any] | BinaryIO | None = None) -> Iterator[Any]:
    while line := response.readline(_MAX_LINE):
        found = _object(line)
        if found.get("error"):
            raise ChaskiError(_as_typed(found["error"], body))
        yield found


def _object(data: bytes) -> Any:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ChaskiError("the server answered something else than a JSON object")
    return found
