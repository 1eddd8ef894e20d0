"""NeoBERT that classifies: its scores follow from the first token's state."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import chaski
from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from tests.families import checkpoint, expected, random_tensor


def test_scores_follow_from_the_first_state(tmp_path: Path) -> None:
    """A vector gives the state of the first token, since the last norm fixes its length."""
    known = expected("neo_bert/head")
    hidden = known["config"]["hidden_size"]
    config = {**known["config"], "architectures": ["NeoBERTForSequenceClassification"], "num_labels": 1}
    layers = {"dense.weight": [hidden, hidden], "dense.bias": [hidden]}
    layers |= {"classifier.weight": [1, hidden], "classifier.bias": [1]}
    checkpoint(tmp_path, config, {**known["tensors"], **layers}, known["seed"])
    convert(tmp_path, tmp_path / "model.gguf", "F32")
    with open_gguf(tmp_path / "model.gguf") as file:
        assert file.get("neo-bert.pooling_type", int) == 4
    with chaski.load(tmp_path / "model.gguf", context=128) as model:
        (ids,) = model.prompts.pairs("the llama", ["a runner"], False)
        (score,) = model.score("the llama", ["a runner"])
    scale = random_tensor("model.layer_norm.weight", (hidden,), known["seed"])
    checkpoint(tmp_path / "states", known["config"], known["tensors"], known["seed"])
    convert(tmp_path / "states", tmp_path / "states.gguf", "F32")
    with chaski.load(tmp_path / "states.gguf", context=128) as model:
        (vector,) = np.asarray(model.embed([ids]), np.float64)

    state = vector * np.sqrt(hidden / np.sum((vector / scale) ** 2))
    dense, bias, last, shift = (
        random_tensor(name, tuple(shape), known["seed"]) for name, shape in layers.items()
    )
    wanted = last @ np.tanh(dense @ state + bias) + shift
    np.testing.assert_allclose(score, 1 / (1 + np.exp(-wanted[0])), atol=1e-5)
