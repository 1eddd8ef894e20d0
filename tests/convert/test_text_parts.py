"""Checkpoints with other names than their text model's convert to the same bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.checkpoint import plan_conversion
from chaski.convert.convert import convert
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import open_checkpoint
from tests.convert.checkpoints import DATA, changed, write_safetensors, written

Rename = Callable[[str], str]


def under(prefix: str, head: str = "lm_head.weight") -> Rename:
    """Put `prefix` before the names of states, as in wrappers; `head` is the output matrix."""
    return lambda name: head if name == "lm_head.weight" else prefix + name.removeprefix("model.")


# Architecture of the wrapper, checkpoint of its text model, names, and a tensor of another part.
WRAPPED: dict[str, tuple[str, Rename, str]] = {
    "AudioFlamingo3ForConditionalGeneration": (
        "qwen2",
        under("language_model.model.", "language_model.lm_head.weight"),
        "audio_tower.conv1.weight",
    ),
    "DotsOCRForCausalLM": ("qwen2", under("model."), "vision_tower.blocks.0.norm1.weight"),
    "IQuestCoderForCausalLM": ("llama3", under("model."), ""),
    "JanusForConditionalGeneration": (
        "llama2",
        under("model.language_model."),
        "model.generation_head.proj_out.weight",
    ),
    "MiniCPMV4_6ForConditionalGeneration": (
        "qwen35",
        under("model.language_model."),
        "model.merger.mlp.0.linear_1.weight",
    ),
    "Phi4ForCausalLMV": ("phi3", under("model."), "model.mm_projector.0.weight"),
    "Qwen2AudioForConditionalGeneration": (
        "qwen2",
        under("language_model.model.", "language_model.lm_head.weight"),
        "multi_modal_projector.linear.weight",
    ),
    "StepVLForConditionalGeneration": (
        "qwen3",
        under("model.language_model."),
        "vit_large_projector.weight",
    ),
    "VoxtralForConditionalGeneration": (
        "llama3",
        under("language_model.model.", "language_model.lm_head.weight"),
        "audio_tower.layers.0.fc1.weight",
    ),
}


def rewritten(
    name: str,
    folder: Path,
    settings: Callable[[dict[str, Any]], dict[str, Any]],
    rename: Rename,
    more: str = "",
) -> Path:
    """Write a copy of a checkpoint with other settings and names ("" for none), and the tensor `more`."""
    shutil.copytree(DATA / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings(config)))
    tensors = {
        rename(tensor.name): ("F32", as_float32(tensor.data).reshape(tensor.shape))
        for tensor in open_checkpoint(DATA / name).values()
        if rename(tensor.name)
    }
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    if more:
        tensors[more] = ("F32", np.zeros((2, 2), np.float32))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def same(found: GGUFFile, wanted: GGUFFile) -> bool:
    """Compare tensors, and keys except file names."""
    ours, theirs = (
        {key: str(value) for key, value in file.metadata.items() if not key.startswith("general.")}
        for file in (found, wanted)
    )
    assert ours == theirs
    assert found.tensors.keys() == wanted.tensors.keys()
    return all((found.tensors[name].data == wanted.tensors[name].data).all() for name in wanted.tensors)


@pytest.mark.parametrize("wrapper", sorted(WRAPPED))
@pytest.mark.parametrize("nested", [True, False])
def test_the_text_model_of_a_wrapper(tmp_path: Path, wrapper: str, nested: bool) -> None:
    """The settings come from the whole configuration or from its part `text_config`."""
    name, rename, other = WRAPPED[wrapper]

    def settings(config: dict[str, Any]) -> dict[str, Any]:
        outer = {"architectures": [wrapper], "vision_config": {"hidden_size": 8}, "audio_config": {}}
        return {"text_config": config, **outer} if nested else {**config, **outer}

    folder = rewritten(name, tmp_path / "wrapped", settings, rename, other)
    plain = rewritten(name, tmp_path / "plain", lambda config: config, lambda each: each)
    assert same(written(folder), written(plain))


OTHER_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "InternLM3ForCausalLM": (
        "llama2",
        {"bias": True, "qkv_bias": True, "rope_scaling": {"rope_type": "dynamic", "factor": 6.0}},
    ),
    "JinaEmbeddingsV5Model": ("eurobert", {}),
    "Lfm2Model": ("lfm2", {}),
}


@pytest.mark.parametrize("other", OTHER_NAMES)
def test_a_model_under_another_name(tmp_path: Path, other: str) -> None:
    """Checkpoints with only states have names without the prefix."""
    name, values = OTHER_NAMES[other]

    def settings(config: dict[str, Any]) -> dict[str, Any]:
        old = {
            key: value for key, value in config.items() if not ("rope_scaling" in values and "rope" in key)
        }
        base = (config.get("rope_parameters") or {}).get("rope_theta", config.get("rope_theta", 10000.0))
        return {**old, "rope_theta": base, **values, "architectures": [other]}

    def rename(each: str) -> str:
        return each.removeprefix("model.") if other.endswith("Model") else each

    folder = rewritten(name, tmp_path / "other", settings, rename)
    plain = rewritten(name, tmp_path / "plain", lambda config: config, lambda each: each)
    assert same(written(folder), written(plain))


def test_kormo_is_qwen_2_without_biases(tmp_path: Path) -> None:
    names = {"input_layernorm": "pre_attention_layernorm", "post_attention_layernorm": "pre_mlp_layernorm"}

    def rename(name: str) -> str:
        for old, new in names.items():
            name = name.replace(old, new)
        return "" if name.endswith(".bias") else name

    found = written(
        rewritten(
            "qwen2",
            tmp_path / "kormo",
            lambda config: {**config, "architectures": ["KORMoForCausalLM"]},
            rename,
        )
    )
    wanted = written(rewritten("qwen2", tmp_path / "plain", lambda config: config, lambda each: each))
    assert found.architecture == "qwen2"
    assert found.tensors.keys() == {name for name in wanted.tensors if not name.endswith(".bias")}
    assert all((each.data == wanted.tensors[name].data).all() for name, each in found.tensors.items())


def test_the_states_of_qwen_2_vl(tmp_path: Path) -> None:
    """Without an output matrix, the embedding serves as one, as in a complete model that ties them."""

    def settings(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def changed(config: dict[str, Any]) -> dict[str, Any]:
            half = config["hidden_size"] // config["num_attention_heads"] // 2
            rope = {**config["rope_parameters"], "mrope_section": [half - 2, 1, 1]}
            tied = {"tie_word_embeddings": "Generation" in name, "architectures": [name]}
            return {**config, "rope_parameters": rope, **tied}

        return changed

    def headless(name: str) -> str:
        return "" if name == "lm_head.weight" else name

    def base(name: str) -> str:
        return headless(f"language_model.{name.removeprefix('model.')}" if name != "lm_head.weight" else name)

    whole = settings("Qwen2VLForConditionalGeneration")
    wanted = written(rewritten("qwen2", tmp_path / "whole", whole, headless))
    found = written(
        rewritten("qwen2", tmp_path / "base", settings("Qwen2VLModel"), base, "visual.merger.ln_q.weight")
    )
    assert same(found, wanted)


def pooled(name: str, folder: Path, settings: dict[str, Any], **values: Any) -> Path:
    """Write a copy of a checkpoint with sentence-transformers' pooling settings."""
    changed(name, folder, values)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "lfm2", "mistral"])
def test_decoders_that_make_embeddings(tmp_path: Path, name: str) -> None:
    """The file names the pooling, as in llama.cpp's converter for some of them."""
    file = written(pooled(name, tmp_path / name, {"pooling_mode_lasttoken": True}))
    assert file.metadata[f"{file.architecture}.pooling_type"] == 3
    plain = written(changed(name, tmp_path / "plain", {}))
    assert f"{file.architecture}.pooling_type" not in plain.metadata
    with chaski.load(file.path, context=32, threads=1) as model:
        longer, shorter = np.asarray(model.embed(["the other end", "the other"], normalize=False))
        assert model.pooling is not None
    assert abs(longer - shorter).max() > 1e-3


def test_a_decoder_whose_tokens_see_each_other(tmp_path: Path) -> None:
    folder = pooled("qwen2", tmp_path / "seeing", {"pooling_mode_mean_tokens": True}, is_causal=False)
    file = written(folder)
    assert file.metadata["qwen2.attention.causal"] is False
    shutil.rmtree(folder / "1_Pooling")
    with pytest.raises(UnsupportedError, match="'is_causal' is False; only True"):
        convert(folder, tmp_path / "out.gguf", "F32")


@pytest.mark.parametrize(
    ("name", "dense"), [("lfm2", "1_Dense"), ("qwen2", "2_Dense_1024"), ("bert", "4_Dense")]
)
def test_dense_layers_are_not_left_out_in_silence(tmp_path: Path, name: str, dense: str) -> None:
    folder = pooled(name, tmp_path / name, {"pooling_mode_mean_tokens": True})
    (folder / dense).mkdir()
    with pytest.raises(UnsupportedError, match=f"the dense layer {dense} cannot be converted"):
        convert(folder, tmp_path / "out.gguf", "F32")


def test_a_tensor_that_belongs_to_no_known_part_is_an_error(tmp_path: Path) -> None:
    wrapper = "VoxtralForConditionalGeneration"
    folder = rewritten(
        "llama3",
        tmp_path / "wrapped",
        lambda config: {**config, "architectures": [wrapper]},
        under("language_model.model.", "language_model.lm_head.weight"),
        "another_part.weight",
    )
    with pytest.raises(ModelError, match=r"no use for tensors another_part\.weight"):
        plan_conversion(folder)


@pytest.mark.parametrize(
    "wrapper", ["Qwen3OmniMoeForConditionalGeneration", "Qwen3ASRForConditionalGeneration"]
)
def test_a_thinker(tmp_path: Path, wrapper: str) -> None:
    """Models with audio input and output have their settings in two nested parts."""
    name = "qwen3moe" if "Moe" in wrapper else "qwen3"

    def settings(config: dict[str, Any]) -> dict[str, Any]:
        sections = {"mrope_section": [config["head_dim"] // 2 - 2, 1, 1]}
        text = {**config, "rope_parameters": {**config["rope_parameters"], **sections}}
        vision = {"deepstack_visual_indexes": [0], "depth": 1}
        thinker = {"text_config": text, "vision_config": vision, "audio_config": {}}
        return {"architectures": [wrapper], "thinker_config": thinker}

    def rename(each: str) -> str:
        return f"thinker.{each}"

    file = written(rewritten(name, tmp_path / name, settings, rename, "thinker.audio_tower.conv1.weight"))
    arch = file.architecture
    assert arch == ("qwen3vlmoe" if "Moe" in wrapper else "qwen3vl")
    assert file.metadata[f"{arch}.n_deepstack_layers"] == 0
    logits = []
    plain = written(rewritten(name, tmp_path / "plain", lambda config: config, lambda each: each))
    for path in (file.path, plain.path):
        with chaski.load(path, context=32, threads=1) as model:
            logits.append(np.asarray(model.logits([5, 9, 3, 44, 21])))
    np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=1e-5)
