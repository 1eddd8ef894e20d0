"""Readable descriptions of a stored model: its Modelfile, and a list of its parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator

from chaski.store.model import StoredModel
from chaski.store.modelfile import Instruction, Modelfile

__all__ = ["modelfile_of", "parameter_lines"]


def modelfile_of(model: StoredModel) -> Modelfile:
    """Return the Modelfile that recreates the model from its own files."""
    return Modelfile(tuple(_instructions(model)))


def parameter_lines(model: StoredModel) -> Iterator[tuple[str, str]]:
    """Yield the parameters by name as JSON, with one pair per value of a list."""
    for name, value in sorted(model.parameters.items()):
        values: list[object] = [*value] if isinstance(value, list) else [value]
        for each in values:
            yield name, json.dumps(each, ensure_ascii=False)


def _instructions(model: StoredModel) -> Iterator[Instruction]:
    for path in (model.path, *model.projectors):
        yield Instruction("from", str(path))
    for path in model.adapters:
        yield Instruction("adapter", str(path))
    if model.draft is not None:
        yield Instruction("draft", str(model.draft))
    for command in ("template", "system"):
        if (text := getattr(model, command)) is not None:
            yield Instruction(command, text)
    for command in ("renderer", "parser", "requires"):
        if text := getattr(model.config, command):
            yield Instruction(command, text)
    for name, text in parameter_lines(model):
        # The Modelfile grammar expects bare numbers, booleans and texts, not JSON strings.
        yield Instruction("parameter", str(json.loads(text)) if text.startswith('"') else text, name)
    for message in model.messages:
        yield Instruction("message", message["content"], message["role"])
    for text in model.licenses:
        yield Instruction("license", text)
