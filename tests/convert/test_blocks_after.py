"""Blocks for multi-token prediction after the last layer: the file of a checkpoint does not get them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaski.convert.convert import convert
from chaski.errors import ModelError
from chaski.formats.gguf import open_gguf
from tests.families import checkpoint, converted, expected

FAMILIES = ("bailingmoe2", "cohere2moe", "glm4moe", "hy_v3")


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_after_the_last_layer_are_left_out(family: str, tmp_path: Path) -> None:
    known = expected(f"{family}/usual")
    layers = known["config"]["num_hidden_layers"]
    more = {
        f"model.layers.{layers}.eh_proj.weight": [32, 64],
        f"model.layers.{layers}.self_attn.q_proj.weight": [48, 32],
    }
    config = known["config"] | {"num_nextn_predict_layers": 1}
    folder = checkpoint(tmp_path / "more", config, known["tensors"] | more, known["seed"])
    convert(folder, tmp_path / "more.gguf", "F32")
    with open_gguf(tmp_path / "more.gguf") as found, open_gguf(converted(f"{family}/usual")) as usual:
        assert found.tensors.keys() == usual.tensors.keys()
        assert found.metadata.keys() == usual.metadata.keys()


def test_other_blocks_are_an_error(tmp_path: Path) -> None:
    known = expected("glm4moe/usual")
    more = {"model.layers.3.eh_proj.weight": [32, 64]}
    folder = checkpoint(tmp_path / "more", known["config"], known["tensors"] | more, known["seed"])
    with pytest.raises(ModelError, match=r"layers\.3\.eh_proj"):
        convert(folder, tmp_path / "more.gguf", "F32")
