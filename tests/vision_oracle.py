"""Helpers for tests of vision models: their encoders layer by layer, and concurrent answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

import chaski
from chaski.formats.requantize import plan_types, requantize
from chaski.kvcache import LayerCache
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.model.encoder import EncoderProgram
from chaski.model.file_dialects import open_model
from chaski.model.multimodal import EncoderShape, Image
from chaski.model.registry import build_model, vision_of
from chaski.model.weights import place_weights
from tests.backends import CHOSEN
from tests.foreign import NAMES

__all__ = ["BACKENDS", "F32", "BoundEncoder", "answers_at_once", "quantized", "said"]

F32 = NDArray[np.float32]
BACKENDS = [(name, 1e-4) for name in ((CHOSEN,) if CHOSEN else ("reference", "cpu", *NAMES))]
"""The allowed difference from transformers for each."""


@dataclass
class BoundEncoder:
    """The image encoder of a file or its projector, with the weights bound to a backend."""

    path: Path
    backend: str
    projector: Path | None = None
    vision: Any = field(init=False)
    _opened: Backend = field(init=False)

    def __post_init__(self) -> None:
        file = open_model(self.path)
        projector = None if self.projector is None else open_model(self.projector)
        model = build_model(file, projector)
        self._opened = open_backend(self.backend, CPUOptions(threads=1))
        place_weights(model, file, self._opened, projector)
        self._opened.load(lambda _: None)
        self.vision = vision_of(model)

    def rows(self, image: Image) -> F32:
        """Return the rows for the text model."""
        return EncoderProgram(self.vision, self._opened, DType.F32).encode(image)

    def states(self, image: Image, *stacks: list[Any]) -> F32:
        """Return the input of each stack's first layer and the output of every layer.

        -> (states, patches, size). The stacks are lists of layers that the encoder goes through.
        """
        whole = _Watched(self.vision, stacks)
        rows = EncoderProgram(whole, self._opened, DType.F32).encode(image)
        return np.asarray(rows.reshape(len(rows), whole.num_states, -1).swapaxes(0, 1))


class _Watched:
    """An encoder whose rows are the concatenated states of its patches between layers."""

    is_bidirectional = False

    def __init__(self, vision: Any, stacks: Sequence[list[Any]]) -> None:
        self._vision, self._stacks = vision, stacks
        self.shape: EncoderShape = replace(
            vision.shape, max_rows=max(vision.shape.max_patches, vision.shape.max_rows)
        )
        self.num_states = sum(1 + len(stack) for stack in stacks)

    def read_image(self, data: bytes) -> Image:
        raise NotImplementedError

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        states: list[Tensor] = []
        layers = [list(stack) for stack in self._stacks]
        for stack in self._stacks:
            stack[:] = [_Layer(layer, states, index == 0) for index, layer in enumerate(stack)]
        self._vision.encode_multimodal(graph, patches, rows, history)
        for stack, own in zip(self._stacks, layers, strict=True):
            stack[:] = own
        size = states[0].shape[1]
        assert isinstance(size, int)
        assert len(states) == self.num_states
        return ops.concat([(state, index * size, 1) for index, state in enumerate(states)])


@dataclass
class _Layer:
    layer: Any
    states: list[Tensor]
    is_first: bool

    def __call__(self, x: Tensor, *others: Any) -> Tensor:
        if self.is_first:
            self.states.append(x)
        found: Tensor = self.layer(x, *others)
        self.states.append(found)
        return found


def quantized(path: Path, target: Path, kind: str = "Q4_0") -> Path:
    """Write the file with matrices of this type, whose products use other kernels."""
    with open_model(path) as file:
        requantize(file, target, plan_types(file, kind))
    return target


def answers_at_once(
    model: chaski.LLM, prompts: Iterable[tuple[str, Sequence[Any]]], **options: Any
) -> list[Any]:
    """Return the answers to concurrent prompts with images, in the form of `said`."""
    streams = [model.stream(text, images, **options) for text, images in prompts]
    events: list[list[Any]] = [[next(stream)] for stream in streams]
    for stream, of_stream in zip(streams, events, strict=True):
        of_stream += stream
    return [_said(of_stream[:-1]) for of_stream in events]


def said(answer: chaski.Answer) -> Any:
    """Return tokens and their scores, in the form of `answers_at_once`."""
    return answer.token_ids, answer.logprobs


def _said(pieces: Iterable[Any]) -> Any:
    listed = list(pieces)
    tokens = tuple(token for piece in listed for token in piece.token_ids)
    return tokens, tuple(entry for piece in listed for entry in piece.logprobs)
