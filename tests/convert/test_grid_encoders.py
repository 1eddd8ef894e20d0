"""Checkpoints of Kimi-VL, Kimi K2.5, PaddleOCR-VL and HunyuanOCR, with the names of their releases.

Their tensors come from tests/data/vision. Converting a checkpoint must restore these tensors, and those of
the projectors that llama.cpp's converter made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.convert.convert import convert
from chaski.errors import UnsupportedError
from chaski.formats.gguf import open_gguf
from tests.convert.checkpoints import write_safetensors
from tests.convert.test_qwen_vision import Arrays, values, write_tokenizer
from tests.tiny_vision import DATA

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
HEADS, PLAIN = 3, 16  # of Kimi's text models: heads, and the elements of a key without a rope
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 48,
    "intermediate_size": 40,
    "moe_intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 256,
    "q_lora_rank": 20,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": PLAIN,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5,
    "vocab_size": 311,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
ERNIE = {
    "hidden_size": 48,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 20,
    "max_position_embeddings": 256,
    "vocab_size": 306,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "rope_scaling": {"rope_type": "default", "mrope_section": [4, 3, 3]},
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
HUNYUAN = {
    "hidden_size": 40,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "vocab_size": 307,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "xdrope", "alpha": 50.0, "factor": 1.0, "xdrope_section": [2, 2, 2, 2]},
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
# The text settings are at the top in PaddleOCR-VL and HunyuanOCR.
CONFIGS: dict[str, dict[str, Any]] = {
    "hunyuanvl": {
        "architectures": ["HunYuanVLForConditionalGeneration"],
        **HUNYUAN,
        "vision_config": {
            "hidden_size": 24,
            "intermediate_size": 52,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "max_image_size": 40,
            "patch_size": 8,
            "rms_norm_eps": 1e-5,
        },
    },
    "kimik25": {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": DEEPSEEK,
        "vision_config": {
            "init_pos_emb_height": 5,
            "init_pos_emb_width": 5,
            "init_pos_emb_time": 4,
            "merge_kernel_size": [2, 2],
            "merge_type": "sd2_tpool",
            "patch_size": 8,
            "pos_emb_type": "divided_fixed",
            "projector_hidden_act": "gelu",
            "vt_hidden_size": 36,
            "vt_intermediate_size": 52,
            "vt_num_attention_heads": 3,
            "vt_num_hidden_layers": 3,
        },
    },
    "kimivl": {
        "architectures": ["KimiVLForConditionalGeneration"],
        "text_config": DEEPSEEK,
        "vision_config": {
            "hidden_size": 20,
            "init_pos_emb_height": 5,
            "init_pos_emb_width": 5,
            "intermediate_size": 52,
            "merge_kernel_size": [2, 2],
            "num_attention_heads": 1,
            "num_hidden_layers": 3,
            "patch_size": 16,
        },
    },
    "paddleocr": {
        "architectures": ["PaddleOCRVLForConditionalGeneration"],
        **ERNIE,
        "vision_config": {
            "hidden_size": 40,
            "intermediate_size": 52,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 60,
            "patch_size": 8,
            "hidden_act": "gelu_pytorch_tanh",
        },
    },
}
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
PREPROCESSORS: dict[str, dict[str, Any]] = {
    "hunyuanvl": {"min_pixels": 8 * 256, "max_pixels": 30 * 256, **CLIP},
    "kimik25": {"media_proc_cfg": {"in_patch_limit": 160, "patch_limit_on_one_side": 512, **HALF}},
    "kimivl": {"in_token_limit": 4096, "pad_input": True, **HALF},
    "paddleocr": {"min_pixels": 8 * 256, "max_pixels": 40 * 256, **HALF},
}
TEXT = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "ffn_gate_inp": "mlp.gate",
    **{f"attn_{name}": f"self_attn.{name}_proj" for name in ("q", "k", "v", "q_a", "q_b", "kv_b")},
    **{f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    **{f"ffn_{name}_shexp": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
}
MOONVIT = {
    "v.patch_embd": "vision_tower.patch_embed.proj",
    "v.position_embd": "vision_tower.patch_embed.pos_emb",
    "v.post_ln": "vision_tower.encoder.final_layernorm",
    "v.blk": "vision_tower.encoder.blocks",
    "ln1": "norm0",
    "ln2": "norm1",
    "attn_qkv": "wqkv",
    "attn_out": "wo",
    "ffn_up": "mlp.fc0",
    "ffn_down": "mlp.fc1",
}
SIGLIP = {
    "v.patch_embd": "visual.vision_model.embeddings.patch_embedding",
    "v.position_embd": "visual.vision_model.embeddings.position_embedding",
    "v.post_ln": "visual.vision_model.post_layernorm",
    "v.blk": "visual.vision_model.encoder.layers",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "attn_out": "self_attn.out_proj",
    **{f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"},
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
PERCEIVER = {
    "v.patch_embd": "vit.embeddings.patch_embedding",
    "v.position_embd": "vit.embeddings.position_embedding",
    "v.blk": "vit.layers",
    "v": "vit.perceive",
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "attn_out": "self_attn.o_proj",
    **{f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"},
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
    "mm": "vit.perceive",
    "mm.0": "vit.perceive.proj.0",
    "mm.2": "vit.perceive.proj.2",
    "mm.model.fc": "vit.perceive.mlp",
    "mm.pre_norm": "vit.perceive.before_rms",
    "mm.post_norm": "vit.perceive.after_rms",
}
SEEN = {
    "hunyuanvl": PERCEIVER,
    "kimik25": MOONVIT
    | {
        "mm.input_norm": "mm_projector.pre_norm",
        "mm.1": "mm_projector.proj.0",
        "mm.2": "mm_projector.proj.2",
    },
    "kimivl": MOONVIT
    | {"mm.input_norm": "multi_modal_projector.pre_norm"}
    | {f"mm.{index}": f"multi_modal_projector.linear_{index}" for index in (1, 2)},
    "paddleocr": SIGLIP
    | {"mm.input_norm": "mlp_AR.pre_norm", "mm.1": "mlp_AR.linear_1", "mm.2": "mlp_AR.linear_2"},
}


def joined(model: str, found: Arrays) -> Arrays:
    """Return the tensors with those joined that a checkpoint stores as one."""
    for name in [name for name in found if name.startswith("v.blk") and "attn_q." in name]:
        if model == "kimivl":
            parts = [found.pop(name.replace("attn_q", f"attn_{letter}")) for letter in "qkv"]
            found[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    for name in [name for name in found if "attn_k_b" in name]:
        keys, values_ = found.pop(name), found.pop(name.replace("attn_k_b", "attn_v_b"))
        both = np.concatenate([keys.swapaxes(1, 2), values_], axis=1)
        found[name.replace("attn_k_b", "attn_kv_b")] = both.reshape(-1, both.shape[-1])
    if model == "hunyuanvl":
        table = found["v.position_embd.weight"]
        found["v.position_embd.weight"] = np.concatenate([np.ones_like(table[:1]), table])
        found["v.image_sep"] = found.pop("v.view_seperator")
    if model == "kimivl":
        table = found["v.position_embd.weight"]
        found["v.position_embd.weight"] = table.reshape(5, 5, -1)
    if model == "kimik25":
        for name in [name for name in found if "attn_qkv" in name]:
            query, key, value = np.split(found[name], 3)
            turned = (
                part.reshape(3, 2, -1, 2, *part.shape[1:]).swapaxes(1, 2).reshape(part.shape)
                for part in (query, key)
            )
            found[name] = np.concatenate([*turned, value])
    return found


def published(model: str, found: Arrays) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a file under the names of a release."""
    prefix = "language_model." if model.startswith("kimi") else ""
    for name, array in joined(model, found).items():
        table = SEEN[model] if name.startswith(("v.", "mm.")) else TEXT
        stem, kind = name.rsplit(".", 1)
        outer, layer, inner = re.fullmatch(r"(?:(.*blk)\.(\d+)\.)?(.*)", stem).groups()
        if outer is None:
            own = table[stem]
        elif table is TEXT:
            own = f"model.layers.{layer}.{inner}"
        else:
            own = f"{table['v.blk']}.{layer}.{table[inner]}"
        if table is not TEXT:
            yield f"{own}.{kind}", array
        elif inner == "exp_probs_b":
            yield f"{prefix}model.layers.{layer}.mlp.gate.e_score_correction_bias", array
        elif inner.endswith("_exps"):
            part = inner.removeprefix("ffn_").removesuffix("_exps")
            for expert, matrix in enumerate(array):
                yield f"{prefix}model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight", matrix
        else:
            own = own if outer is None else f"model.layers.{layer}.{TEXT[inner]}"
            yield f"{prefix}{own}.{kind}", array


def checkpoint(
    model: str,
    folder: Path,
    change: Callable[[dict[str, Any], dict[str, Any]], None] = lambda config, preprocessor: None,
) -> Path:
    """Write the checkpoint of a file of tests/data/vision, with changed settings."""
    folder.mkdir()
    config, preprocessor = (json.loads(json.dumps(table[model])) for table in (CONFIGS, PREPROCESSORS))
    change(config, preprocessor)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    with open_gguf(DATA / f"{model}.gguf") as file:
        write_tokenizer(folder, file)
        tensors = {
            name: ("F32", np.ascontiguousarray(array, np.float32))
            for name, array in published(model, values(file))
        }
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize("model", [*CONFIGS])
def test_a_checkpoint_gives_the_file_and_the_projector_of_llama_cpp(model: str, tmp_path: Path) -> None:
    source = checkpoint(model, tmp_path / "in")
    convert(source, tmp_path / "whole.gguf", "F32")
    convert(source, tmp_path / "text.gguf", "F32", projector=tmp_path / "mmproj.gguf")
    names = {"general.file_type", "general.name", "general.size_label"}
    for path, wanted in (("whole", model), ("mmproj", f"{model}-mmproj")):
        with open_gguf(tmp_path / f"{path}.gguf") as found, open_gguf(DATA / f"{wanted}.gguf") as file:
            ours, theirs = values(found), values(file)
            assert ours.keys() == theirs.keys()
            for name, array in theirs.items():
                np.testing.assert_array_equal(ours[name], array, err_msg=name)
            # llama.cpp's converter writes some keys of Kimi K2.5's encoder without `clip`.
            keys = {key for key in file.metadata.keys() - names if key[:7] not in ("vision.", "tokeniz")}
            assert keys <= found.metadata.keys()
            for key in keys:
                np.testing.assert_array_equal(found.metadata[key], file.metadata[key], err_msg=key)


@pytest.mark.parametrize(
    ("model", "part", "setting", "value"),
    [
        ("kimik25", "vision_config", "merge_kernel_size", [3, 3]),
        ("kimik25", "vision_config", "init_pos_emb_width", 6),
        ("kimik25", "media_proc_cfg", "patch_limit_on_one_side", 256),
        ("kimivl", "", "pad_input", False),
        ("kimivl", "", "in_token_limit", 1024),
        ("paddleocr", "vision_config", "spatial_merge_size", 3),
    ],
)
def test_settings_that_a_file_cannot_express(
    model: str, part: str, setting: str, value: Any, tmp_path: Path
) -> None:
    def change(config: dict[str, Any], preprocessor: dict[str, Any]) -> None:
        (config if part in config else preprocessor).get(part, preprocessor)[setting] = value

    source = checkpoint(model, tmp_path / "in", change)
    with pytest.raises(UnsupportedError, match=r"only .* can be converted"):
        convert(source, tmp_path / "out.gguf", "F32")
