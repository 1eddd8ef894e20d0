"""Files of Jamba without experts."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.model.registry import build_model
from chaski.model.weights import match_weights
from tests.families import converted


def test_no_layer_needs_experts() -> None:
    with open_gguf(converted("jamba/dense")) as file:
        metadata = {key: value for key, value in file.metadata.items() if ".expert_" not in key}
        dense = GGUFFile(file.path, metadata, file.tensors)
        assert len(match_weights(build_model(dense), dense)) == len(file.tensors)
