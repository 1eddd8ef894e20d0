"""`Registry`: one model of a registry, accessed with the required subset of Docker's registry protocol.

Protocol: https://distribution.github.io/distribution/spec/api/
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from urllib.parse import urlencode, urljoin, urlsplit

from chaski.errors import AccessDeniedError, ModelNotFoundError, RegistryError
from chaski.names import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG, Digest, ModelName
from chaski.store.http import Access, Http, HttpReply, TemporaryError, host_of, range_headers
from chaski.store.identity import Identity
from chaski.store.manifest import MANIFEST, MAX_MANIFEST_BYTES

__all__ = ["Registry", "SplitModelError"]

_MAX_REPLY_BYTES = 1 << 20
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


def _elsewhere(name: ModelName) -> str:
    """Return where a model may be if Ollama's registry lacks it: `USER/REPOSITORY` is Hugging Face's form."""
    if name.host != DEFAULT_HOST or name.namespace == DEFAULT_NAMESPACE:
        return ""
    tag = "" if name.tag == DEFAULT_TAG else f":{name.tag}"
    return f"; a repository of Hugging Face is hf.co/{name.namespace}/{name.model}{tag}"


class SplitModelError(RegistryError):
    """The registry stores the weights as a split GGUF file, for which it provides no manifest."""


class Registry:
    """The registry of a model. Use it as a context manager. Several threads may call its methods.

    Methods raise AccessDeniedError if credentials are missing, TemporaryError if a retry may help, and
    RegistryError for other failures.
    """

    def __init__(self, name: ModelName, access: Access) -> None:
        self.name = name
        self._access = access
        self._http = Http(access)
        self._base = f"{name.scheme}://{name.host}/v2/{name.namespace}/{name.model}"
        self._authorization: str | None = None
        self._lock = Lock()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *details: object) -> None:
        self._http.close()

    def manifest(self) -> bytes:
        """Return the bytes of the model's manifest.

        Raises ModelNotFoundError if the registry has no manifest, and SplitModelError for split weights.
        """
        url = f"{self._base}/manifests/{self.name.tag}"
        with self.get(url, {"Accept": MANIFEST}) as reply:
            if reply.status == 404:
                raise ModelNotFoundError(f"pull model manifest: file does not exist{_elsewhere(self.name)}")
            if reply.status == 400:
                reason = _reason(reply)
                error = SplitModelError if "sharded" in reason.lower() else RegistryError
                raise error(f"pull model manifest: {host_of(reply.url)} answered 400{reason}")
            _require(reply, 200)
            return reply.read(MAX_MANIFEST_BYTES)

    @contextmanager
    def blob(self, digest: Digest, begin: int, end: int, size: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Provide the actual start position and the bytes of a blob from `begin` to `end`."""
        with self.piece(f"{self._base}/blobs/{digest}", begin, end, size) as found:
            yield found

    @contextmanager
    def piece(self, url: str, begin: int, end: int, size: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Provide the actual start position and the bytes from `begin` to `end` of a file of `size` bytes.

        A server without range support sends the whole file, so the start position is 0.
        """
        with self.get(url, range_headers(begin, end, size)) as reply:
            if reply.status != 206:
                _require(reply, 200)
            yield reply.part(begin, end, size)

    def has_blob(self, digest: Digest) -> bool:
        """Return whether the registry already has a blob."""
        with self._send("HEAD", f"{self._base}/blobs/{digest}") as reply:
            if reply.status not in (200, 404, 307):
                _require(reply, 200)
            return reply.status != 404

    def begin_upload(self, digest: Digest, source: str | None) -> str | None:
        """Return the upload address for a blob, or None if the registry reused `source`'s blob."""
        query = f"?{urlencode({'mount': str(digest), 'from': source})}" if source else ""
        with self._send("POST", f"{self._base}/blobs/uploads/{query}") as reply:
            if reply.status == 201:
                return None
            _require(reply, 202)
            return _location(reply)

    def upload(self, url: str, begin: int, end: int, pieces: Iterator[bytes]) -> str:
        """Send the bytes from `begin` to `end`; return the address for the next bytes."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(end - begin),
            "Content-Range": f"{begin}-{end - 1}",
        }
        with self._send("PATCH", url, headers, pieces) as reply:
            _require(reply, 202)
            return _location(reply)

    def uploaded(self, url: str) -> tuple[int, str]:
        """Return the number of bytes that have arrived, and the address for the next ones."""
        with self._send("GET", url) as reply:
            _require(reply, 204)
            match = re.fullmatch(r"(?:bytes=)?0-(\d{1,18})", reply.headers.get("range", ""))
            return (int(match[1]) + 1 if match and match[1] != "0" else 0), _location(reply, default=url)

    def finish_upload(self, url: str, digest: Digest) -> None:
        """Ask the registry to verify and keep the uploaded blob."""
        joint = "&" if urlsplit(url).query else "?"
        with self._send(
            "PUT", f"{url}{joint}{urlencode({'digest': str(digest)})}", {"Content-Length": "0"}
        ) as reply:
            _require(reply, 201)

    def put_manifest(self, manifest: bytes) -> None:
        """Publish a manifest under the model's name. The registry must have its blobs."""
        url = f"{self._base}/manifests/{self.name.tag}"
        with self._send("PUT", url, {"Content-Type": MANIFEST}, manifest) as reply:
            _require(reply, 201)

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[HttpReply]:
        """GET an address, following redirects. Retry once with credentials if the registry requires them."""
        before = self._authorization
        with self._http.follow(url, headers, before) as reply:
            if not self._is_challenge(reply):
                yield reply
                return
            challenge = reply.headers.get("www-authenticate", "")
        self._authorize(challenge, before)
        with self._http.follow(url, headers, self._authorization) as reply:
            yield reply

    @contextmanager
    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        content: bytes | Iterator[bytes] | None = None,
    ) -> Iterator[HttpReply]:
        """Send a request without redirects. Requests with a body follow others, so credentials are known."""
        before = self._authorization
        with self._http.request(method, url, self._own(url) | dict(headers or {}), content) as reply:
            if not self._is_challenge(reply):
                yield reply
                return
            challenge = reply.headers.get("www-authenticate", "")
        self._authorize(challenge, before)
        if isinstance(content, Iterator):
            raise TemporaryError(f"{host_of(url)} asked for credentials in the middle of an upload")
        with self._http.request(method, url, self._own(url) | dict(headers or {}), content) as reply:
            yield reply

    def _own(self, url: str) -> dict[str, str]:
        """Return the credentials if `url` is on the registry itself."""
        is_home = url.startswith(f"{self.name.scheme}://{self.name.host}/")
        return {"Authorization": self._authorization} if self._authorization and is_home else {}

    def _is_challenge(self, reply: HttpReply) -> bool:
        return reply.status == 401 and host_of(reply.url) == self.name.host

    def _authorize(self, challenge: str, before: str | None) -> None:
        """Obtain the credentials that a 401 requires, unless another thread already did."""
        with self._lock:
            if self._authorization == before:
                self._authorization = self._credentials(challenge)

    def _credentials(self, challenge: str) -> str:
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self._access.username is not None:
            return self._basic()
        fields = dict(_CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or "realm" not in fields:
            raise AccessDeniedError("unauthorized: access denied")
        return f"Bearer {self._token(fields)}"

    def _token(self, fields: Mapping[str, str]) -> str:
        """Request a token from the realm with a password, or with a signature if there is no password.

        The realm must be on the registry's own host, because the request contains secrets.
        """
        realm = urlsplit(fields["realm"])
        if realm.netloc != self.name.host:
            raise RegistryError(
                f'realm host "{realm.netloc}" does not match original host "{self.name.host}"'
            )
        wanted = [("service", fields["service"])] if "service" in fields else []
        wanted += [("scope", scope) for scope in fields.get("scope", "").split()]
        # A signature is valid for a short time and a single use.
        wanted += [("ts", str(int(time.time()))), ("nonce", secrets.token_urlsafe(16))]
        url = realm._replace(
            query="&".join(filter(None, (realm.query, urlencode(wanted)))), fragment=""
        ).geturl()
        if self._access.username is not None:
            headers = {"Authorization": self._basic()}
        else:
            headers = {"Authorization": Identity.of_user(self._access.key).authorization("GET", url)}
        with self._http.request("GET", url, headers) as reply:
            _require(reply, 200)
            body = reply.read(_MAX_REPLY_BYTES)
        try:
            found = json.loads(body)
            token = found.get("token") or found.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise AccessDeniedError("unauthorized: access denied")
        return token

    def _basic(self) -> str:
        pair = f"{self._access.username or ''}:{self._access.password or ''}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _require(reply: HttpReply, status: int) -> None:
    if reply.status == status:
        return
    if reply.status in (401, 403):
        raise AccessDeniedError("unauthorized: access denied")
    raise RegistryError(f"{host_of(reply.url)} answered {reply.status}{_reason(reply)}")


def _reason(reply: HttpReply) -> str:
    """Return the registry's error message, or "" for any other body."""
    try:
        found = json.loads(reply.read(_MAX_REPLY_BYTES))
        text = found["errors"][0]["message"] if "errors" in found else found["error"]
    except (ValueError, LookupError, TypeError, RecursionError, RegistryError):
        return ""
    return f": {text:.200}" if isinstance(text, str) else ""


def _location(reply: HttpReply, default: str | None = None) -> str:
    found = reply.headers.get("location", default)
    if not found:
        raise RegistryError(f"{host_of(reply.url)} did not say where to upload to")
    return urljoin(reply.url, found)
