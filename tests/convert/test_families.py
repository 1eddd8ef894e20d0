"""Converted checkpoints against llama.cpp's converter, byte by byte, and against transformers."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.text.tokenizer import load_tokenizer
from tests.convert.checkpoints import ASSISTANTS, DATA, EMBEDDERS, NAMES, UNWITNESSED, expected

# Keys that llama.cpp omits as defaults, or does not find without a `tokenizer.json`.
OURS = {
    "modern-bert.attention.layer_norm_epsilon",
    "gemma.rope.freq_base",
    "gemma2.rope.freq_base",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eos_token_ids",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.unknown_token_id",
    *(f"gemma4-assistant.{key}" for key in ("centroid_top_k", "n_centroids", "use_ordered_embeddings")),
}
# llama.cpp omits the clusters of an assistant's vocabulary, though it has names for them.
OUR_TENSORS = {"masked_embd_centroids.weight", "masked_embd_ordering"}
# llama.cpp writes keys for pairs of texts, which chaski does not use; and tokens that only CodeGemma has,
# which chaski finds by their texts.
THEIRS = {"tokenizer.ggml.add_sep_token"} | {
    f"tokenizer.ggml.{name}_token_id" for name in ("prefix", "suffix", "middle", "fsep", "eot")
}
# The key for the first token of classified texts, whatever the purpose of the checkpoint.
THEIRS |= {f"{arch}.classifier.pooling_type" for arch in ("eurobert", "modern-bert")}
# llama.cpp has no scores for a SentencePiece model in `tokenizer.json`, and spells padding differently.
PLACEHOLDERS = {"tokenizer.ggml.scores", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"}
WITHOUT_SCORES = {"mistral"}
# llama.cpp applies the activation to the wrong half in the release for code, and omits the bias after
# experts.
OTHERWISE = {"jina-bert-v2-code": "blk.0.ffn_up.weight", "nomic-bert-moe": "blk.1.ffn_down.bias"}


@pytest.fixture(scope="module")
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    """Convert one checkpoint to F32."""
    path = tmp_path_factory.mktemp("converted") / "out.gguf"
    convert(DATA / request.param, path, "F32")
    return open_gguf(path)


def each_of(names: list[str]) -> pytest.MarkDecorator:
    pairs = [(name, name) for name in names]
    return pytest.mark.parametrize(("converted", "name"), pairs, indirect=["converted"], ids=names)


each_checkpoint = each_of(NAMES)
each_witnessed = each_of([name for name in [*NAMES, *EMBEDDERS, *ASSISTANTS] if name not in UNWITNESSED])


def plain(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    return value.tolist() if isinstance(value, np.ndarray) else list(value)


def is_float(value: Any) -> bool:
    return isinstance(value[0] if isinstance(value, list) and value else value, float)


@each_witnessed
def test_metadata_is_that_of_llama_cpp(converted: GGUFFile, name: str) -> None:
    ignored = THEIRS | (PLACEHOLDERS if name in WITHOUT_SCORES else set())
    wanted = {key: value for key, value in expected(name)["metadata"].items() if key not in ignored}
    found = {
        key: plain(value)
        for key, value in converted.metadata.items()
        if key not in ignored and not key.startswith(("general.", "tokenizer.chat_template"))
    }
    if "tokenizer.ggml.model" not in wanted:  # a unigram vocabulary, without llama.cpp's result
        found = {key: value for key, value in found.items() if not key.startswith("tokenizer.")}
    assert found.keys() - wanted.keys() <= OURS
    assert {key: found.get(key) for key in wanted} == {
        key: pytest.approx(value) if is_float(value) else value for key, value in wanted.items()
    }


@each_witnessed
def test_tensors_are_those_of_llama_cpp(converted: GGUFFile, name: str) -> None:
    found = {
        tensor.name: [list(tensor.shape), tensor.type.name, hashlib.sha256(tensor.data).hexdigest()[:16]]
        for tensor in converted.tensors.values()
        if tensor.name not in OUR_TENSORS
    }
    wanted = expected(name)["tensors"]
    for computed, values in expected(name)["computed"].items():  # math functions differ, so only close
        np.testing.assert_allclose(converted.tensors[computed].data.view(np.float32), values, rtol=1e-6)
        wanted[computed] = found[computed]
    assert found.pop(OTHERWISE.get(name, ""), None) != wanted.pop(OTHERWISE.get(name, ""), [])
    assert found == wanted


@each_of([*NAMES, *EMBEDDERS, *ASSISTANTS])
def test_token_ids_are_those_of_transformers(converted: GGUFFile, name: str) -> None:
    tokenizer = load_tokenizer(converted.metadata)
    for text, ids in expected(name)["ids"]:
        assert tokenizer.encode(text) == ids, text


@each_checkpoint
def test_logits_are_those_of_transformers(converted: GGUFFile, name: str) -> None:
    wanted = expected(name)
    model = chaski.load(converted.path, backend="reference", context=64, threads=1)
    outputs = np.asarray(model.logits(wanted["prompt"].tolist()))[wanted["places"]]
    np.testing.assert_allclose(outputs, wanted["outputs"], atol=1e-3)


@each_checkpoint
def test_chat_template_is_kept(converted: GGUFFile, name: str) -> None:
    assert converted.get("tokenizer.chat_template", str) == (DATA / name / "chat_template.jinja").read_text()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@each_of(EMBEDDERS)
def test_embeddings_are_those_of_transformers(converted: GGUFFile, name: str, backend: str) -> None:
    texts = [text for text, _ in expected(name)["ids"]]
    with chaski.load(converted.path, backend=backend, context=128, parallel=4) as model:
        found = np.asarray(model.embed(texts, normalize=False))
    assert expected(name)["vectors"].std() > 0.3
    np.testing.assert_allclose(found, expected(name)["vectors"], rtol=0, atol=1e-4)
