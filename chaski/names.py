"""Names of models, of their blobs and of engines: `ModelName`, `Digest`. This module reads no files.

Model names follow Ollama's grammar, so that names, references and folders are compatible.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from msgspec import Struct

from chaski.errors import OptionError

__all__ = [
    "AUTO",
    "DEFAULT_HOST",
    "DEFAULT_NAMESPACE",
    "DEFAULT_TAG",
    "ENGINES",
    "LLAMA_CPP",
    "NATIVE",
    "Digest",
    "ModelName",
    "check_engine",
    "is_path",
    "without_defaults",
]

NATIVE, LLAMA_CPP = "native", "llama.cpp"
ENGINES = (NATIVE, LLAMA_CPP)
AUTO = "auto"
"""The name that selects the best backend of a machine."""

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

# No part begins with a dot or contains a slash, so parts are safe as folder names.
_PARTS = {
    "host": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}"),
    "namespace": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}"),
    "model": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"),
    "tag": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"),
}
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_SCHEMES = ("https", "http")
_PATHS = (".", "/", "~")


@dataclass(frozen=True, slots=True)
class ModelName:
    """The full name of a model: `host/namespace/model:tag`. Only valid names exist.

    Names that differ in case mean the same model; the store keeps the case in which one was first written.
    scheme: the URL scheme of its registry, not part of the name itself.
    typed: the text that was parsed, for errors; empty if no user wrote the name.
    """

    host: str
    namespace: str
    model: str
    tag: str
    scheme: str = field(default="https", compare=False)
    typed: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        for part, pattern in _PARTS.items():
            if not pattern.fullmatch(getattr(self, part)):
                raise OptionError(f"invalid model name: {part} {getattr(self, part)!r:.100} is not allowed")
        if self.scheme not in _SCHEMES:
            raise OptionError(f"invalid model name: {self.scheme!r:.20} is neither https nor http")

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Parse `[scheme://][host/][namespace/]model[:tag]`. Missing parts get Ollama's defaults.

        Raises OptionError for an invalid name.
        """
        scheme, mark, rest = text.rpartition("://")
        *folders, last = rest.split("/")
        if len(folders) > 2:
            raise OptionError(f"invalid model name: {text!r:.200} has more parts than host/namespace/model")
        model, colon, tag = last.partition(":")
        namespace = folders.pop() if folders else DEFAULT_NAMESPACE
        host = folders.pop() if folders else DEFAULT_HOST
        tag = tag if colon else DEFAULT_TAG
        return cls(host, namespace, model, tag, scheme if mark else "https", text)

    @property
    def short(self) -> str:
        """Return the short form of the name: without default host and namespace, but always with the tag."""
        folders = [self.host, self.namespace]
        if self.host == DEFAULT_HOST:
            folders = [] if self.namespace == DEFAULT_NAMESPACE else [self.namespace]
        return "/".join([*folders, f"{self.model}:{self.tag}"])

    @property
    def shown(self) -> str:
        """Return the name as the user typed it, for errors; else its short form."""
        return self.typed or self.short

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Host, namespace, model and tag: the folders of its manifest, and the manifest's file name."""
        return self.host, self.namespace, self.model, self.tag

    def with_parts(self, parts: tuple[str, ...]) -> ModelName:
        """Return the same name in the spelling of `parts`."""
        host, namespace, model, tag = parts
        return replace(self, host=host, namespace=namespace, model=model, tag=tag)

    def __str__(self) -> str:
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"


class Digest(Struct, frozen=True, order=True):
    """A SHA-256 digest: 64 lowercase hexadecimal digits. Only valid digests exist."""

    hex: str

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(f"sha256:{self.hex}"):
            raise OptionError(f"invalid digest format: {self.hex!r:.100}")

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Parse `sha256:HEX`, or `sha256-HEX` as used in file names."""
        match = _DIGEST.fullmatch(text)
        if match is None:
            raise OptionError(f"invalid digest format: {text!r:.100}")
        return cls(match[1])

    @property
    def file_name(self) -> str:
        return f"sha256-{self.hex}"

    @property
    def short(self) -> str:
        """The first 12 digits, for display."""
        return self.hex[:12]

    def __str__(self) -> str:
        return f"sha256:{self.hex}"


def check_engine(name: str | None) -> str | None:
    """Return the name of an engine, or None for any engine. Raises OptionError for an unknown name."""
    if name is not None and name not in ENGINES:
        raise OptionError(f"option engine is {name!r}; it must be {' or '.join(ENGINES)}")
    return name


def without_defaults(text: str) -> str:
    """Return a message without the default host and namespace of the models that it names.

    Ollama's clients expect full names in some messages, which are no help to other readers.
    """
    return text.replace(f"{DEFAULT_HOST}/{DEFAULT_NAMESPACE}/", "").replace(f"{DEFAULT_HOST}/", "")


def is_path(model: str) -> bool:
    """Return whether the spelling of a model's name means a file or folder on this machine."""
    return model.startswith(_PATHS) or model.endswith((".gguf", "/"))
