"""Cross-encoders and Qwen 3's rerankers: scores of transformers, and each document as alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import open_checkpoint
from tests.convert.checkpoints import write_safetensors
from tests.rewriting import all_tensors

DATA = Path(__file__).parents[1] / "data"
NAMES = ["bert", "distilbert", "modern-bert", "xlm-roberta"]


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "rankers" / name / "expected.json").read_text())
    return found


def relevance(outputs: Any) -> np.ndarray:
    """Return scores like sentence-transformers: of one label, or as shares of several."""
    outputs = np.asarray(outputs, np.float64)
    if outputs.shape[1] == 1:
        return 1 / (1 + np.exp(-outputs[:, 0]))
    return np.exp(outputs[:, 0]) / np.exp(outputs).sum(axis=1)


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def file(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rankers") / f"{name}.gguf"
    convert(DATA / "rankers" / name, path, "F32")
    return path


@pytest.fixture(scope="module")
def model(file: Path) -> Iterator[chaski.LLM]:
    with chaski.load(file, threads=1, parallel=2) as found:
        yield found


def test_the_ids_of_pairs(name: str, model: chaski.LLM) -> None:
    values = expected(name)
    assert model.prompts.pairs(values["query"], values["documents"], False) == values["ids"]


def test_scores_of_transformers(name: str, model: chaski.LLM) -> None:
    values = expected(name)
    scores = model.score(values["query"], values["documents"])
    wanted = relevance(values["outputs"])
    assert np.ptp(wanted) > 0.01, "the documents differ"
    np.testing.assert_allclose(scores, wanted, atol=2e-6)
    best = model.rerank(values["query"], values["documents"])[0]
    assert best.index == wanted.argmax()


def test_each_document_is_judged_for_itself(name: str, model: chaski.LLM) -> None:
    values = expected(name)
    together = model.score(values["query"], values["documents"])
    alone = [model.score(values["query"], [each])[0] for each in values["documents"]]
    assert alone == together.tolist()


def test_texts_do_not_write_the_tokens_that_part_them(model: chaski.LLM) -> None:
    """Otherwise a document could end the query's part and pass as the query."""
    for text in ("</s>", "[SEP]", "<s>", "[CLS]"):
        (ids,) = model.prompts.pairs(f"a {text} b", [f"c {text} d"], False)
        (plain,) = model.prompts.pairs("a b", ["c d"], False)
        ends = {plain[0], plain[-1]}
        assert [each for each in ids if each in ends] == [each for each in plain if each in ends]


def test_long_documents_are_cut_at_their_end(model: chaski.LLM) -> None:
    context = model.context
    (whole,) = model.prompts.pairs("where", ["the " * context], True)
    assert len(whole) == context
    assert whole[-1] == model.prompts.pairs("where", ["the"], True)[0][-1]
    first, second = model.score("where", ["the " * context, "the " * (context + 50)], truncate=True)
    assert first == second
    with pytest.raises(chaski.ContextLengthError, match="set truncate"):
        model.score("where", ["the " * context])
    with pytest.raises(chaski.ContextLengthError, match="set truncate"):
        model.score("where " * context, ["the"], truncate=True)


def test_a_file_that_does_not_name_its_pooling(file: Path, tmp_path: Path, name: str) -> None:
    """llama.cpp's converter leaves this to an option of its server; the classifier implies it."""
    plain = open_gguf(file)
    metadata = {key: value for key, value in plain.metadata.items() if not key.endswith("bert.pooling_type")}
    write_gguf(tmp_path / "silent.gguf", metadata, all_tensors(plain))
    values = expected(name)
    with chaski.load(tmp_path / "silent.gguf", threads=1) as model:
        np.testing.assert_allclose(
            model.score(values["query"], values["documents"]), relevance(values["outputs"]), atol=2e-6
        )


def test_the_activation_in_front_of_scores(tmp_path: Path) -> None:
    """DistilBERT uses ReLU, and its file states it; other activations than the two known ones are refused."""
    convert(DATA / "rankers" / "distilbert", tmp_path / "relu.gguf", "F32")
    plain = open_gguf(tmp_path / "relu.gguf")
    assert plain.metadata["bert.classifier.activation"] == "relu"
    for name in ("tanh", "gelu"):
        metadata = {**plain.metadata, "bert.classifier.activation": name}
        write_gguf(tmp_path / f"{name}.gguf", metadata, all_tensors(plain))
    values = expected("distilbert")
    with chaski.load(tmp_path / "tanh.gguf", threads=1) as model:
        scores = model.score(values["query"], values["documents"])
    assert abs(scores - relevance(values["outputs"])).max() > 1e-3
    with pytest.raises(UnsupportedError, match=r"bert\.classifier\.activation = 'gelu' is not supported"):
        chaski.load(tmp_path / "gelu.gguf")


def test_a_file_that_ranks_by_one_layer(tmp_path: Path) -> None:
    """llama.cpp's converter writes some rerankers like this: a row for each label, followed by tanh."""
    convert(DATA / "rankers" / "xlm-roberta", tmp_path / "two.gguf", "F32")
    two = open_gguf(tmp_path / "two.gguf")
    tensors = dict(all_tensors(two))
    kept = {name: each for name, each in tensors.items() if not name.startswith("cls.")}
    single = {f"cls.{kind}": tensors[f"cls.output.{kind}"] for kind in ("weight", "bias")}
    metadata = {key: value for key, value in two.metadata.items() if key != "bert.pooling_type"}
    write_gguf(tmp_path / "one.gguf", metadata, kept | single)
    write_gguf(tmp_path / "first.gguf", {**metadata, "bert.pooling_type": 2}, kept)
    documents = ["The llama carries the load.", "a café", "?"]
    with chaski.load(tmp_path / "one.gguf", threads=1) as model:
        scores = model.score("the llama", documents)
        pairs = model.prompts.pairs("the llama", documents, False)
    with chaski.load(tmp_path / "first.gguf", threads=1) as model:
        states = np.asarray(model.embed(pairs, normalize=False))
    weight, bias = (two.tensors[f"cls.output.{kind}"].data.view(np.float32) for kind in ("weight", "bias"))
    outputs = np.tanh(states @ weight.reshape(2, -1).T + bias)
    assert np.ptp(scores) > 0.01
    np.testing.assert_allclose(scores, relevance(outputs), atol=2e-6)


def test_labels(name: str, file: Path) -> None:
    opened = open_gguf(file)
    found = opened.metadata.get(f"{opened.architecture}.classifier.output_labels")
    named = {"distilbert": ["relevant", "so so", "irrelevant"], "xlm-roberta": ["relevant", "irrelevant"]}
    assert list(found or []) == named.get(name, ["LABEL_0"])


def test_modern_bert_that_ranks_by_a_mean_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "modern-bert"
    shutil.copytree(DATA / "rankers" / "modern-bert", folder)
    convert(folder, tmp_path / "first.gguf", "F32")
    plain = open_gguf(tmp_path / "first.gguf")
    key = "modern-bert.classifier.pooling_type"
    for pooling in ({}, {key: 1}):
        metadata = {**{name: value for name, value in plain.metadata.items() if name != key}, **pooling}
        write_gguf(tmp_path / "mean.gguf", metadata, all_tensors(plain))
        with pytest.raises(UnsupportedError, match="ranks by the mean of a text's states"):
            chaski.load(tmp_path / "mean.gguf")
    config = json.loads((folder / "config.json").read_text()) | {"classifier_pooling": "mean"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="'classifier_pooling' is 'mean'; only 'cls'"):
        convert(folder, tmp_path / "out.gguf")


def test_labels_without_some_number(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    shutil.copytree(DATA / "rankers" / "bert", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": {"1": "a"}}))
    with pytest.raises(ModelError, match="'id2label' does not name the labels from 0 on"):
        convert(folder, tmp_path / "out.gguf")


def reranker(folder: Path) -> Path:
    """Write a tiny Qwen 3 whose vocabulary has the two answers instead of two unused tokens."""
    shutil.copytree(DATA / "checkpoints" / "qwen3", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    merges = [each.split(" ") if isinstance(each, str) else each for each in tokenizer["model"]["merges"]]
    parts = {part for merge in merges for part in merge}
    unused = [merge for merge in merges if "".join(merge) not in parts][-2:]
    tokenizer["model"]["merges"] = [merge for merge in merges if merge not in unused]
    vocabulary = tokenizer["model"]["vocab"]
    for merge, answer in zip(unused, ("yes", "no"), strict=True):
        vocabulary[answer] = vocabulary.pop("".join(merge))
    path.write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize("told_by", ["the folder", "README.md"])
def test_qwen3_answers_yes_or_no(told_by: str, tmp_path: Path) -> None:
    plain = reranker(tmp_path / "Qwen3")
    convert(plain, tmp_path / "text.gguf", "F32")
    if told_by == "README.md":
        (plain / "README.md").write_text("# Qwen3-Reranker-tiny\n")
    else:
        plain = plain.rename(tmp_path / "Qwen3-Reranker-tiny")
    convert(plain, tmp_path / "ranker.gguf", "F32")
    metadata = open_gguf(tmp_path / "ranker.gguf").metadata
    assert list(metadata["qwen3.classifier.output_labels"]) == ["yes", "no"]
    assert list(metadata["tokenizer.chat_templates"]) == ["rerank"]
    ids = [
        json.loads((plain / "tokenizer.json").read_text())["model"]["vocab"][each] for each in ("yes", "no")
    ]
    documents = ["the load", "a café"]
    template = str(metadata["tokenizer.chat_template.rerank"])
    with chaski.load(tmp_path / "text.gguf", threads=1) as model:
        prompts = [template.replace("{query}", "the llama").replace("{document}", each) for each in documents]
        logits = np.stack([model.logits(prompt)[-1, ids] for prompt in prompts])
    with chaski.load(tmp_path / "ranker.gguf", threads=1) as model:
        scores = model.score("the llama", documents)
    np.testing.assert_allclose(scores, relevance(logits), rtol=1e-5)


def test_qwen3_for_sequence_classification_scores_what_the_answers_differ_by(tmp_path: Path) -> None:
    plain = reranker(tmp_path / "Qwen3-Reranker-tiny")
    convert(plain, tmp_path / "answers.gguf", "F32")
    ids = [
        json.loads((plain / "tokenizer.json").read_text())["model"]["vocab"][each] for each in ("yes", "no")
    ]
    source = open_checkpoint(plain)
    output = source.get("lm_head.weight") or source["model.embed_tokens.weight"]
    yes, no = (as_float32(output.data[each]) for each in ids)
    tensors = {name: (each.dtype, each.data) for name, each in source.items() if name != "lm_head.weight"}
    write_safetensors(plain / "new", tensors | {"score.weight": ("F32", (yes - no)[None])})
    (plain / "new").replace(plain / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (plain / "config.json").write_text(json.dumps(config))
    convert(plain, tmp_path / "scores.gguf", "F32")
    documents = ["the load", "a café"]
    with chaski.load(tmp_path / "answers.gguf", threads=1) as model:
        wanted = model.score("the llama", documents)
    with chaski.load(tmp_path / "scores.gguf", threads=1) as model:
        found = model.score("the llama", documents)
        assert model.rerank("the llama", documents)[0].index == wanted.argmax()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_qwen3_without_the_answers(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-Reranker-tiny"
    shutil.copytree(DATA / "checkpoints" / "qwen3", folder)
    with pytest.raises(ModelError, match="needs the tokens yes and no"):
        convert(folder, tmp_path / "out.gguf")
