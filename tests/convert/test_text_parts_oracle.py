"""Logits of transformers for text models of wrappers and of families with other names in transformers.

The tests make random tiny checkpoints. They need torch and transformers, so run them by hand.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from tests.convert.checkpoints import DATA

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.oracle

VOCABULARY: int = json.loads((DATA / "qwen3" / "config.json").read_text())["vocab_size"]
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
AUDIO: dict[str, Any] = {
    "d_model": 16,
    "hidden_size": 16,
    "encoder_layers": 1,
    "num_hidden_layers": 1,
    "encoder_attention_heads": 2,
    "num_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "intermediate_size": 64,
    "num_mel_bins": 16,
    "max_source_positions": 50,
}
VISION: dict[str, Any] = {"depth": 1, "num_heads": 2, "hidden_size": 16, "intermediate_size": 16}
HEARING: dict[str, Any] = {**AUDIO, "output_dim": 32, "n_window": 4, "downsample_hidden_size": 8}
PROMPT = [5, 9, 3, 44, 21, 7, 30, 12, 8, 61]


def built(name: str, **parts: Any) -> Any:
    """Return a random model of this class, with the matching configuration class."""
    base = name.removesuffix("ForConditionalGeneration").removesuffix("ForCausalLM").removesuffix("Model")
    torch.manual_seed(3)
    model = getattr(transformers, name)(getattr(transformers, f"{base}Config")(**parts))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.float().eval()


def sections(*numbers: int) -> dict[str, Any]:
    kinds = {"rope_type": "default", "rope_theta": 10000.0, "mrope_interleaved": True}
    return {"rope_parameters": {**kinds, "mrope_section": [*numbers]}}


MODELS: dict[str, Callable[[], Any]] = {
    "VoxtralForConditionalGeneration": lambda: built(
        "VoxtralForConditionalGeneration",
        audio_config=AUDIO,
        text_config={**TEXT, "model_type": "llama", "head_dim": 8},
    ),
    "Qwen2AudioForConditionalGeneration": lambda: built(
        "Qwen2AudioForConditionalGeneration",
        audio_config=AUDIO,
        text_config={**TEXT, "model_type": "qwen2"},
    ),
    "AudioFlamingo3ForConditionalGeneration": lambda: built(
        "AudioFlamingo3ForConditionalGeneration",
        audio_config=AUDIO,
        text_config={**TEXT, "model_type": "qwen2"},
    ),
    "MiniCPMV4_6ForConditionalGeneration": lambda: built(
        "MiniCPMV4_6ForConditionalGeneration",
        vision_config={
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "image_size": 32,
            "patch_size": 8,
        },
        text_config={
            **TEXT,
            "head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "full_attention_interval": 2,
        },
    ),
    "Qwen2_5OmniModel": lambda: built(
        "Qwen2_5OmniThinkerForConditionalGeneration",
        audio_config=HEARING,
        vision_config={**VISION, "out_hidden_size": 32, "fullatt_block_indexes": [0]},
        text_config={**TEXT, **sections(1, 1, 2)},
    ),
    "Qwen3OmniMoeForConditionalGeneration": lambda: built(
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        audio_config=HEARING,
        vision_config={
            **VISION,
            "out_hidden_size": 32,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 16,
        },
        text_config={
            **TEXT,
            **sections(2, 1, 1),
            "moe_intermediate_size": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 8,
            "mlp_only_layers": [],
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
        },
    ),
    "JanusForConditionalGeneration": lambda: built(
        "JanusForConditionalGeneration",
        tie_word_embeddings=False,
        text_config={**TEXT, "model_type": "llama"},
        vision_config={
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 16,
            "projection_dim": 32,
            "mlp_ratio": 2.0,
        },
        vq_config={
            "embed_dim": 4,
            "num_embeddings": 16,
            "latent_channels": 4,
            "base_channels": 32,
            "channel_multiplier": [1],
            "num_res_blocks": 1,
            "projection_dim": 32,
            "image_token_embed_dim": 32,
            "num_patches": 4,
        },
    ),
    "InternLM3ForCausalLM": lambda: built("Qwen2ForCausalLM", **TEXT),
    "KORMoForCausalLM": lambda: built("LlamaForCausalLM", **TEXT),
    "Lfm2Model": lambda: built(
        "Lfm2ForCausalLM",
        **{
            **TEXT,
            "tie_word_embeddings": True,
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 3,
            "layer_types": ["conv", "full_attention"],
        },
    ),
    "Qwen2VLModel": lambda: built(
        "Qwen2VLForConditionalGeneration",
        tie_word_embeddings=True,
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2},
        text_config={**TEXT, "tie_word_embeddings": True, **sections(1, 1, 2)},
    ),
}
KORMO = {"input_layernorm": "pre_attention_layernorm", "post_attention_layernorm": "pre_mlp_layernorm"}


def checkpoint(folder: Path, name: str, model: Any) -> Path:
    """Save a model in the published form of this class, with a tokenizer."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    tensors = safetensors.load_file(folder / "model.safetensors")
    if "Omni" in name:
        config = {"thinker_config": config}
        tensors = {f"thinker.{key}": value for key, value in tensors.items()}
        tensors["talker.model.norm.weight"] = torch.ones(4)
    elif name == "KORMoForCausalLM":
        for old, new in KORMO.items():
            tensors = {key.replace(old, new): value for key, value in tensors.items()}
    elif name == "InternLM3ForCausalLM":
        config |= {"qkv_bias": True, "bias": False}
        config["rope_scaling"] = {"rope_type": "dynamic", "factor": 6.0}
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    elif name.endswith("Model"):
        tensors = {key.removeprefix("model."): each for key, each in tensors.items() if "lm_head" not in key}
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
    safetensors.save_file(tensors, folder / "model.safetensors")
    for path in (DATA / "qwen3").glob("*token*"):
        shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize("name", sorted(MODELS))
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([PROMPT])).logits[0].numpy()
    convert(checkpoint(tmp_path / "model", name, model), tmp_path / "out.gguf", "F32")
    with chaski.load(tmp_path / "out.gguf", backend="reference", context=64, threads=1) as found:
        logits = np.asarray(found.logits(PROMPT))
    assert wanted.std() > 0.1
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-3)
