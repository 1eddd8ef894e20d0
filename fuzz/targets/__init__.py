"""Targets by name. The module of a target is imported when it is asked for: Atheris changes all imports."""

from __future__ import annotations

from importlib import import_module

from fuzz.target import Target

__all__ = ["NAMES", "target_of"]

_MODULES = {
    "files": ("gguf", "safetensors"),
    "models": ("model", "adapter", "projector", "draft"),
    "tokenizers": ("tokenizer-json", "sentencepiece", "vocabulary"),
    "templates": ("jinja", "go"),
    "grammars": ("grammar", "regex", "schema"),
    "requests": ("http", "multipart"),
    "store": ("modelfile", "manifest", "registry", "batch", "receipt", "checkpoint"),
    "wires": ("worker", "shard-frames", "shard-values", "link"),
    "images": ("image", "video"),
    "states": ("prefix-block", "block-name", "state"),
}
NAMES = tuple(name for names in _MODULES.values() for name in names)


def target_of(name: str) -> Target:
    """Import a target."""
    place = next(module for module, names in _MODULES.items() if name in names)
    targets: tuple[Target, ...] = import_module(f"fuzz.targets.{place}").TARGETS
    return next(target for target in targets if target.name == name)
