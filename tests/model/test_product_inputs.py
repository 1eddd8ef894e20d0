"""The measured inputs of products, for every architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski.formats.gguf import open_gguf
from chaski.formats.mixture import stays
from chaski.kvcache import CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.ml import open_backend
from chaski.ml.graph import DType
from chaski.model.product_inputs import ProductInputs, Squares
from chaski.model.registry import build_model
from chaski.model.weights import bind_weights
from tests.backends import USUAL
from tests.families import converted, expected

DATA = Path(__file__).parents[1] / "data" / "architectures"
NAMES = sorted(path.stem for path in DATA.glob("*.gguf"))
TOKENS, BATCH = 24, 16
# Matrices whose rows are looked up, or that other operations than products use.
OTHERS = re.compile(r"per_layer_token_embd|shortconv\.conv|ssm_conv1d")


def squares(name: str, backend: str = USUAL) -> dict[str, Squares]:
    """Compute some tokens in two batches, and return the sums of both."""
    with np.load(DATA / f"{name}.npz") as arrays:
        return squares_of(DATA / f"{name}.gguf", arrays["ids"][:TOKENS].astype(np.int32), backend)


def squares_of(path: Path, ids: npt.NDArray[np.int32], backend: str = USUAL) -> dict[str, Squares]:
    with open_gguf(path) as file:
        model = build_model(file)
        model.context = 64
        opened = open_backend(backend)
        bind_weights(model, file, opened, lambda _: None)
        size = CacheSize(1, 64, BATCH)
        cache = build_cache(opened, model.layer_kinds(), size, KVTypes(DType.F32, DType.F32))
        program = ProductInputs(model, file, cache, opened, BATCH)
        found: dict[str, Squares] = {}
        for begin in range(0, TOKENS, BATCH):
            tokens = ids[begin : begin + BATCH]
            places = np.arange(len(tokens), dtype=np.int32)
            batch = Batch(tokens, begin + places, np.zeros_like(places), places)
            for tensor, each in program.squares(batch):
                before = found.get(tensor, Squares(np.zeros_like(each.sums), np.zeros_like(each.counts)))
                found[tensor] = Squares(before.sums + each.sums, before.counts + each.counts)
        opened.close()
        return found


def matrices(name: str) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the matrices in layers that a mixture quantizes."""
    with open_gguf(DATA / f"{name}.gguf") as file:
        return {
            tensor: info.shape
            for tensor, info in file.tensors.items()
            if tensor.startswith("blk.") and not stays(tensor, info.shape) and not OTHERS.search(tensor)
        }


def test_each_head_of_latent_attention_is_measured() -> None:
    ids = expected("deepseek2/v2")["prompt"][:TOKENS].astype(np.int32)
    found = squares_of(converted("deepseek2/v2"), ids)
    for name in ("attn_k_b", "attn_v_b"):
        each = found[f"blk.0.{name}.weight"]
        assert len(each.sums) > 1
        assert (each.counts == len(ids)).all()
        assert (each.sums > 0).all()
        assert len(np.unique(each.sums[:, 0])) == len(each.sums)


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_is_measured(name: str) -> None:
    found = squares(name)
    for tensor, shape in matrices(name).items():
        each = found[tensor]
        assert each.sums.shape == (int(np.prod(shape[:-2])), shape[-1]), tensor
        is_of_experts = "_exps" in tensor
        assert each.counts.sum() % TOKENS == 0, tensor
        assert (each.counts.sum() == TOKENS) or is_of_experts, tensor
        assert np.isfinite(each.sums).all()
        assert (each.sums.sum(axis=1) > 0).tolist() == (each.counts > 0).tolist(), tensor


@pytest.mark.parametrize("name", ["qwen3moe", "qwen2", "phi3", "mixtral", "lfm2"])
def test_sums_equal_those_of_the_definition(name: str) -> None:
    found, wanted = squares(name), squares(name, "reference")
    assert found.keys() == wanted.keys()
    for tensor, each in wanted.items():
        np.testing.assert_array_equal(found[tensor].counts, each.counts)
        np.testing.assert_allclose(found[tensor].sums, each.sums, rtol=1e-3, atol=1e-6, err_msg=tensor)
