"""`Manifest`: the blobs of a model and their kinds, parsed from and encoded to JSON.

Format: https://github.com/opencontainers/image-spec/blob/main/manifest.md with Ollama's media types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from chaski.errors import FormatError, OptionError
from chaski.formats.bounded_json import TooManyValuesError, load_json
from chaski.names import Digest

__all__ = [
    "CONFIG",
    "MANIFEST",
    "MAX_JSON_VALUES",
    "MAX_MANIFEST_BYTES",
    "Manifest",
    "ManifestLayer",
    "go_json",
    "media_type",
]

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
MAX_MANIFEST_BYTES = 4 << 20
MAX_JSON_VALUES = 1_000_000  # of a manifest or a small blob
_MAX_LAYERS = 10_000
_KIND = "application/vnd.ollama.image."
_LARGEST = 1 << 50  # bytes of a layer; far beyond any disk


def media_type(kind: str) -> str:
    """Return the media type of a layer kind: model, projector, template, system, params, license ..."""
    return _KIND + kind


class ManifestLayer(Struct, frozen=True):
    """A blob and its media type. `source`: the model it came from. `name`: the name of a tensor."""

    media_type: str
    digest: Digest
    size: int
    source: str | None = None
    name: str | None = None

    @property
    def kind(self) -> str:
        """The last word of an Ollama media type, or any other media type as a whole."""
        return self.media_type.removeprefix(_KIND)


class Manifest(Struct, frozen=True):
    """The layers of a model, in order, and the blob that describes them."""

    config: ManifestLayer
    layers: tuple[ManifestLayer, ...]

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Parse a manifest, checking every used field. Raises FormatError."""
        try:
            found = _manifest(load_json(data, MAX_JSON_VALUES))
            found.encode()  # not for half of a surrogate pair, which is a ValueError
            return found
        except (ValueError, RecursionError, OptionError, TooManyValuesError) as error:
            raise FormatError(f"not a manifest of a model: {error}") from None

    def encode(self) -> bytes:
        """Return the same bytes that Ollama would write."""
        layers = [_fields(layer) for layer in self.layers]
        head = {"schemaVersion": 2, "mediaType": MANIFEST}
        return go_json({**head, "config": _fields(self.config), "layers": layers})

    @property
    def blobs(self) -> tuple[ManifestLayer, ...]:
        """All referenced blobs: the layers, then the description."""
        return (*self.layers, self.config)

    @property
    def size(self) -> int:
        """Total bytes of all blobs."""
        return sum(layer.size for layer in self.blobs)

    def of_kind(self, kind: str) -> list[ManifestLayer]:
        """Return the layers of a kind, in order."""
        return [layer for layer in self.layers if layer.kind == kind]


def go_json(value: object) -> bytes:
    """Encode JSON like Go's encoder, so that equal content has the same digest in chaski and Ollama."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"{text}\n".encode()


def _manifest(found: Any) -> Manifest:
    _require(isinstance(found, dict), "it is not an object")
    _require(found.get("schemaVersion") == 2, "schemaVersion is not 2")
    layers = found.get("layers")
    _require(isinstance(layers, list) and len(layers) <= _MAX_LAYERS, "layers is not a list, or is too long")
    return Manifest(_layer(found.get("config")), tuple(_layer(layer) for layer in layers))


def _layer(found: Any) -> ManifestLayer:
    _require(isinstance(found, dict), "a layer is not an object")
    size = found.get("size")
    _require(type(size) is int and 0 <= size <= _LARGEST, f"the size of a layer is {size!r:.40}")
    source, name = _text(found, "from"), _text(found, "name")
    return ManifestLayer(
        _text(found, "mediaType") or "", Digest.parse(_text(found, "digest") or ""), size, source, name
    )


def _text(found: Mapping[str, Any], key: str) -> str | None:
    value = found.get(key)
    _require(value is None or isinstance(value, str), f"{key} of a layer is {value!r:.40}")
    return value or None


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _fields(layer: ManifestLayer) -> dict[str, object]:
    fields = {"mediaType": layer.media_type, "digest": str(layer.digest), "size": layer.size}
    return fields | {key: text for key, text in (("from", layer.source), ("name", layer.name)) if text}
