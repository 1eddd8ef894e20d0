"""Files with the keys and tensors of Ollama's converter: the bits equal those of llama.cpp's form.

Each case of `dialect_cases` changes one of our files without changing its weights.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile, StringArray, TensorInfo, open_gguf
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.model.drafts import ATTACHED
from chaski.model.file_dialects import DIALECTS, in_our_names
from chaski.model.registry import ARCHITECTURES
from tests.model.dialect_cases import CASES, Case
from tests.rewriting import bytes_as, unchanged
from tests.tiny_llama import write_tiny_llama

DATA = Path(__file__).parents[1] / "data"


def lazy(info: TensorInfo) -> LazyTensor:
    return unchanged(info)


def written(folder: Path, case: Case) -> tuple[Path, Path]:
    """Write the file in llama.cpp's form and in Ollama's."""
    file = open_gguf(DATA / f"{case.source}.gguf")
    arch = file.architecture
    ours = {**file.metadata, **{f"{arch}.{key}": value for key, value in case.given.items()}}
    theirs = {**ours, **{f"{arch}.{key}": value for key, value in case.keys.items()}}
    other = case.architecture or arch
    theirs = {key.replace(f"{arch}.", f"{other}.", 1): v for key, v in theirs.items() if v is not None}
    tensors = {}
    for name, info in file.tensors.items():
        for pattern, new in case.renames.items():
            name = re.sub(pattern, new, name)
        tensors[name] = lazy(info)
    for name, shape in case.added.items():
        tensors[name] = (np.ones(shape, np.float32), next(iter(file.tensors.values())).type)  # type: ignore[assignment]
    write_gguf(folder / "ours.gguf", ours, {name: lazy(info) for name, info in file.tensors.items()})
    write_gguf(folder / "theirs.gguf", {**theirs, "general.architecture": other}, tensors)
    return folder / "ours.gguf", folder / "theirs.gguf"


def computed(path: Path) -> np.ndarray:
    ids = [1, *np.random.default_rng(0).integers(2, 60, 70).tolist()]
    with chaski.load(path, context=128) as model:
        return np.asarray(model.logits(ids) if model.pooling is None else model.embed([ids]))


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_the_other_form(name: str, tmp_path: Path) -> None:
    ours, theirs = written(tmp_path, CASES[name])
    np.testing.assert_array_equal(computed(theirs), computed(ours))


def test_an_encoder_that_is_left_out_is_spoken_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, theirs = written(tmp_path, CASES["gemma3n"])
    with caplog.at_level(logging.WARNING), chaski.load(theirs) as model:
        assert model.generate([1, 2, 3], num_predict=1).done_reason
    assert "text only: the encoder of images in theirs.gguf (gemma3n) is not implemented" in caplog.text


def test_one_tensor_of_query_key_and_value(tmp_path: Path) -> None:
    """It is like OpenAI's own checkpoint of gpt-oss."""
    ours, _ = written(tmp_path, CASES["gptoss"])
    with open_gguf(ours) as file:
        tensors = {name: lazy(info) for name, info in file.tensors.items()}
        for index in range(3):
            for kind in ("weight", "bias"):
                parts = [file.tensors[f"blk.{index}.attn_{part}.{kind}"] for part in "qkv"]
                for part in parts:
                    del tensors[part.name]
                shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
                data = np.concatenate([part.data for part in parts])
                tensors[f"blk.{index}.attn_qkv.{kind}"] = bytes_as(data, parts[0].type, shape)
        write_gguf(tmp_path / "joined.gguf", file.metadata, tensors)
    np.testing.assert_array_equal(computed(tmp_path / "joined.gguf"), computed(ours))


def test_a_tensor_under_both_names_is_refused(tmp_path: Path) -> None:
    _, theirs = written(tmp_path, Case("architectures/lfm2", {}, added={"output_norm.weight": (32,)}))
    with pytest.raises(ModelError, match=r"contains tensor token_embd_norm\.weight twice"):
        chaski.load(theirs)


def file_with(metadata: dict[str, Any]) -> GGUFFile:
    return GGUFFile(Path("a.gguf"), metadata, {})


@pytest.mark.parametrize(("layers", "factor"), [(26, None), (34, 8.0), (48, 8.0), (62, 8.0), (18, None)])
def test_gemma3_by_its_layers(layers: int, factor: float | None) -> None:
    """Ollama's files of larger models lack the scaling, and its first 1B file has a wrong bound."""
    metadata = {
        "general.architecture": "gemma3",
        "gemma3.block_count": layers,
        "gemma3.final_logit_softcapping": 30.0,
    }
    found = in_our_names(file_with(metadata)).metadata
    assert found.get("gemma3.rope.scaling.factor") == factor
    assert found.get("gemma3.final_logit_softcapping") == (None if layers == 26 else 30.0)
    whole = {
        **metadata,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.attention.key_length": 256,
        "gemma3.attention.value_length": 256,
        "gemma3.rope.freq_base": 1e6,
        "tokenizer.ggml.add_space_prefix": True,
    }
    assert in_our_names(file_with(whole)).metadata == whole


@pytest.mark.parametrize(
    ("arch", "pre", "expected"),
    [
        ("gptoss", "default", "gpt-4o"),
        ("gpt-oss", None, "gpt-4o"),
        ("mistral3", "default", "tekken"),
        ("lfm2", None, "lfm2"),
        ("llama4", "default", "llama4"),
        ("llama4", "gpt-2", "gpt-2"),
        ("llama", None, None),
    ],
)
def test_pre_tokenizers_that_are_left_open(arch: str, pre: str | None, expected: str | None) -> None:
    metadata = {
        "general.architecture": arch,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": StringArray.of(["a"]),
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    assert in_our_names(file_with(metadata)).metadata.get("tokenizer.ggml.pre") == expected


def test_llama_3_is_known_by_its_token(tmp_path: Path) -> None:
    tokens = [f"t{index}" for index in range(128009)] + ["<|eot_id|>"]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": StringArray.of(tokens),
    }
    assert in_our_names(file_with(metadata)).metadata["tokenizer.ggml.pre"] == "llama-bpe"


def test_tokens_of_images_and_sounds_are_cut_off(tmp_path: Path) -> None:
    """In Ollama's files of Gemma 3n, these tokens have no per-layer embedding."""
    with open_gguf(DATA / "architectures" / "gemma3n.gguf") as file:
        tensors = {name: lazy(info) for name, info in file.tensors.items()}
        table = file.tensors["token_embd.weight"]
        data = np.concatenate([table.data, table.data[: 7 * 33 * 4]])
        tensors["token_embd.weight"] = bytes_as(data, table.type, (table.shape[0] + 7, 33))
        more: dict[str, Any] = {
            "tokens": [*file.get("tokenizer.ggml.tokens", list[str]), *(f"<{index}>" for index in range(7))],
            "scores": np.append(file.metadata["tokenizer.ggml.scores"], [0.0] * 7).astype(np.float32),
            "token_type": np.append(file.metadata["tokenizer.ggml.token_type"], [3] * 7).astype(np.int32),
        }
        more = {f"tokenizer.ggml.{key}": values for key, values in more.items()}
        write_gguf(tmp_path / "longer.gguf", {**file.metadata, **more}, tensors)
    found = in_our_names(open_gguf(tmp_path / "longer.gguf"))
    sizes = {len(found.metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "scores", "token_type")}
    assert sizes == {61}
    np.testing.assert_array_equal(
        computed(tmp_path / "longer.gguf"), computed(DATA / "architectures" / "gemma3n.gguf")
    )


def test_gemma_4_is_cut_by_its_merges() -> None:
    """Ollama's converter names the tokenizer kind of Gemma 3."""
    metadata: dict[str, Any] = {"general.architecture": "gemma4", "tokenizer.ggml.model": "llama"}
    assert in_our_names(file_with(metadata)).metadata["tokenizer.ggml.model"] == "llama"
    metadata["tokenizer.ggml.merges"] = ["a b"]
    assert in_our_names(file_with(metadata)).metadata["tokenizer.ggml.model"] == "gemma4"


def test_gemma_3_has_no_space_in_front() -> None:
    metadata = {"general.architecture": "gemma3"}
    assert in_our_names(file_with(metadata)).metadata["tokenizer.ggml.add_space_prefix"] is False


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (np.array([True, False]), "does not define the window of each of 5 layers"),
        (np.ones(5, np.float32), "does not define the window of each of 5 layers"),
    ],
)
def test_a_pattern_must_speak_of_every_layer(pattern: Any, message: str, tmp_path: Path) -> None:
    case = Case("architectures/gemma3", {"attention.sliding_window_pattern": pattern})
    with pytest.raises(ModelError, match=message):
        chaski.load(written(tmp_path, case)[1])


def test_what_nobody_converts_is_as_it_was(tmp_path: Path) -> None:
    file = open_gguf(write_tiny_llama(tmp_path / "a.gguf"))
    assert in_our_names(file).metadata == file.metadata
    assert in_our_names(file).tensors == file.tensors


def test_every_row_leads_to_an_architecture() -> None:
    for arch, dialect in DIALECTS.items():
        assert (dialect.architecture or arch) in {*ARCHITECTURES, *ATTACHED}, arch
