"""Files of Kimi Linear that have passed through llama.cpp's quantization."""

from __future__ import annotations

from dataclasses import replace

from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.model.registry import build_model
from chaski.model.weights import match_weights
from tests.families import converted


def test_outer_dimensions_of_one_may_be_missing() -> None:
    with open_gguf(converted("kimi_linear/usual")) as file:
        tensors = {}
        for name, info in file.tensors.items():
            shape = info.shape
            while shape[0] == 1:
                shape = shape[1:]
            tensors[name] = replace(info, shape=shape)
        shapes = {
            name: info.shape for name, info in tensors.items() if info.shape != file.tensors[name].shape
        }
        quantized = GGUFFile(file.path, file.metadata, tensors)
        assert shapes["blk.0.ssm_conv1d_q.weight"] == (48, 1, 4)
        assert len(match_weights(build_model(quantized), quantized)) > len(shapes)
