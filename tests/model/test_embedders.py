"""Embedding models whose tokens all see each other, against transformers (tools/fixtures)."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from chaski.formats.requantize import plan_types, requantize
from chaski.model.program import Program
from tests import families
from tests.convert import checkpoints
from tests.vision_oracle import BACKENDS

DATA = Path(__file__).parents[1] / "data" / "embedders"
NAMES = sorted(path.stem for path in DATA.glob("*.gguf"))
# tests/convert compares the vectors of converted models.
CONVERTED = sorted(set(checkpoints.EMBEDDERS) - set(NAMES))
LENGTHS = [1, 7, 90]


def expected(name: str) -> tuple[list[list[int]], list[NDArray[np.float32]]]:
    with np.load(DATA / f"{name}.npz") as arrays:
        ids = arrays["ids"].tolist()
        means = [arrays[f"mean_{length}"] for length in LENGTHS]
    return [ids[:length] for length in LENGTHS], [mean / np.linalg.norm(mean) for mean in means]


@pytest.mark.parametrize("backend", [backend for backend, _ in BACKENDS])
@pytest.mark.parametrize("name", NAMES)
def test_embeddings_equal_those_of_transformers(name: str, backend: str) -> None:
    texts, wanted = expected(name)
    if name.startswith("jina-bert-v2") and backend.startswith("foreign"):
        with pytest.raises(chaski.UnsupportedError, match="has no distance bias"):
            chaski.load(DATA / f"{name}.gguf", backend=backend)
        return
    with chaski.load(DATA / f"{name}.gguf", backend=backend, context=128, parallel=3) as model:
        found = np.asarray(model.embed(texts))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("context", "together"), [(128, 4), (512, 4), (1024, 2)])
def test_texts_share_batches_though_no_number_is_given(context: int, together: int) -> None:
    """Batches of 512 tokens contain as many texts as fit into 2,048 tokens."""
    with chaski.load(DATA / "nomic-bert.gguf", context=context) as model:
        with patch.object(Program, "prepare", autospec=True, side_effect=Program.prepare) as prepare:
            model.embed([[5] * 120] * 4)
        assert model.engine.parallel == 2048 // context
    assert len(prepare.call_args_list[0].args[1].positions) == 120 * together


@pytest.mark.parametrize("type", ["F32", "Q4_0"])
@pytest.mark.parametrize("name", [*NAMES, *CONVERTED, *families.FIRST_EMBEDDERS])
def test_bits_do_not_depend_on_other_texts_and_threads(name: str, type: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    if name in CONVERTED:
        convert(checkpoints.DATA / name, path, type)
        texts = [ids for _, ids in checkpoints.expected(name)["ids"]]
    else:
        is_family = name in families.FIRST_EMBEDDERS
        with open_gguf(families.converted(name) if is_family else DATA / f"{name}.gguf") as file:
            requantize(file, path, plan_types(file, type))
        texts = families.texts(name) if is_family else expected(name)[0]
        texts = [*texts, texts[1]]
    with chaski.load(path, context=128, parallel=3, threads=2) as model:
        together = np.asarray(model.embed(texts))
    with chaski.load(path, context=128, parallel=1, threads=1) as model:
        for index, text in enumerate(texts):
            np.testing.assert_array_equal(np.asarray(model.embed([text]))[0], together[index])


def test_a_context_ends_with_the_embeddings_of_positions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    convert(checkpoints.DATA / "bert", tmp_path / "bert.gguf")
    with caplog.at_level("WARNING"), chaski.load(tmp_path / "bert.gguf", context=200) as model:
        assert model.context == 128
        assert "bert.gguf knows 128 positions: the context is 128, not 200" in caplog.text
        model.embed([[5] * 128])
        with pytest.raises(chaski.ContextLengthError, match="129 tokens, but the context holds 128"):
            model.embed([[5] * 129])
        text = "the runner " * 90
        found = model.embed([text], truncate=True)
        np.testing.assert_array_equal(found, model.embed([[*model.tokenize(text)[:127], 3]]))


def test_a_text_of_the_whole_context_is_one_batch() -> None:
    with chaski.load(DATA / "jina-bert-v2.gguf", context=600, parallel=2) as model:
        long, short = [5, 6, 7] * 200, [5, 6, 7]
        together = np.asarray(model.embed([long, short]))
        np.testing.assert_array_equal(model.embed([long])[0], together[0])
        np.testing.assert_array_equal(model.embed([short])[0], together[1])


def test_a_text_that_is_longer_than_a_batch_is_refused() -> None:
    texts, _ = expected("nomic-bert")
    with (
        chaski.load(DATA / "nomic-bert.gguf", context=128, num_batch=50) as model,
        pytest.raises(chaski.ChaskiError, match="50"),
    ):
        model.embed([texts[2]])
