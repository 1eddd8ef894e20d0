"""Assistants of Gemma 4: clusters of their vocabulary, the architecture's two names, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.safetensors import open_checkpoint
from tests.convert.checkpoints import DATA, changed, write_safetensors, written

NAME = "gemma4-small-assistant"
ORDERING = "masked_embedding.token_ordering"


def test_clusters_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    folder = changed(NAME, tmp_path / NAME, {})
    source = open_checkpoint(folder)
    with written(folder) as file:
        ordering = file.tensors["masked_embd_ordering"]
        assert (ordering.type.name, ordering.shape) == ("I32", (360,))
        found = np.frombuffer(ordering.data.tobytes(), np.int32)
        assert found.tolist() == source[ORDERING].data.tolist()
        assert sorted(found) == list(range(360))
        assert file.tensors["masked_embd_centroids.weight"].shape == (24, 24)
        keys = ("use_ordered_embeddings", "n_centroids", "centroid_top_k")
        assert [file.metadata[f"gemma4-assistant.{key}"] for key in keys] == [True, 24, 5]


def test_a_checkpoint_that_does_not_use_its_clusters(tmp_path: Path) -> None:
    with written(changed(NAME, tmp_path / NAME, {"use_ordered_embeddings": False})) as file:
        assert not any("masked" in name or "centroid" in name for name in [*file.tensors, *file.metadata])


@pytest.mark.parametrize("name", ["gemma4-assistant", NAME])
def test_those_of_the_12b_have_another_name(name: str, tmp_path: Path) -> None:
    other = {"architectures": ["Gemma4UnifiedAssistantForCausalLM"], "model_type": "gemma4_unified_assistant"}
    with (
        written(changed(name, tmp_path / "one" / name, {})) as one,
        written(changed(name, tmp_path / "two" / name, other)) as two,
    ):
        assert one.path.read_bytes() == two.path.read_bytes()


def test_layers_that_store_keys_are_refused(tmp_path: Path) -> None:
    text = json.loads((DATA / NAME / "config.json").read_text())["text_config"]
    folder = changed(NAME, tmp_path / NAME, {"text_config": text | {"num_kv_shared_layers": 1}})
    with pytest.raises(UnsupportedError, match="only assistants are known whose layers store no keys"):
        written(folder)


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        ("F32", np.zeros(360, np.float32), "holds F32, not whole numbers"),
        ("I64", np.full(360, 1 << 40), "holds numbers beyond int32"),
    ],
)
def test_an_ordering_that_is_none(dtype: str, values: np.ndarray, message: str, tmp_path: Path) -> None:
    folder = changed(NAME, tmp_path / NAME, {})
    tensors = {
        name: (tensor.dtype, np.array(tensor.data)) for name, tensor in open_checkpoint(folder).items()
    }
    write_safetensors(folder / "model.safetensors", {**tensors, ORDERING: (dtype, values)})
    with pytest.raises(ModelError, match=message):
        written(folder)
