"""Converted drafts against llama.cpp's converter, byte by byte.

tools/fixtures/make_dflash.py and make_eagle3.py make the drafts and their targets.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from chaski.cli.convert import command
from chaski.convert.convert import convert
from chaski.errors import ModelError, ModelNotFoundError
from chaski.formats.gguf import open_gguf
from chaski.formats.safetensors import open_checkpoint
from tests.drafts import DRAFTS, EAGLE3, TARGETS

OURS = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"}


@pytest.mark.parametrize("name", sorted(TARGETS | EAGLE3))
def test_the_file_is_that_of_llama_cpp(name: str, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    convert(DRAFTS / name, path, "F32", target=(TARGETS | EAGLE3)[name])
    expected = json.loads((DRAFTS / name / "expected.json").read_text())
    with open_gguf(path) as file:
        tensors = {
            tensor.name: [list(tensor.shape), tensor.type.name, hashlib.sha256(tensor.data).hexdigest()[:16]]
            for tensor in file.tensors.values()
        }
        metadata = {
            key: plain(value)
            for key, value in file.metadata.items()
            if not key.startswith(("general.", "tokenizer.chat_template"))
        }
    for found in (tensors, expected["tensors"]):  # llama.cpp computes it in float32
        found.pop("rope_freqs.weight", None)
    assert tensors == expected["tensors"]
    assert metadata.keys() - expected["metadata"].keys() <= OURS
    for key, value in expected["metadata"].items():
        assert metadata.get(key) == (pytest.approx(value) if isinstance(value, float) else value), key


def plain(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    return value.tolist() if isinstance(value, np.ndarray) else list(value)


def changed(folder: Path, values: dict[str, Any], name: str = "qwen3") -> Path:
    shutil.copytree(DRAFTS / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return folder


def test_what_few_checkpoints_say_is_kept(tmp_path: Path) -> None:
    settings = {
        "is_causal": True,
        "dflash_config": {
            "block_size": 8,
            "mask_token_id": 7,
            "target_layer_ids": [1, 2],
            "output_multiplier": 0.5,
            "final_logit_softcapping": 30.0,
            "input_embedding_scale": 2,
            "use_swa": True,
            "swa_window_size": 64,
        },
    }
    convert(changed(tmp_path / "draft", settings), tmp_path / "draft.gguf", target=TARGETS["qwen3"])
    with open_gguf(tmp_path / "draft.gguf") as file:
        found = {key: plain(value) for key, value in file.metadata.items()}
    assert found["dflash.attention.causal"] is True
    assert found["dflash.block_size"] == 8
    assert found["dflash.target_layers"] == [2, 3]
    assert found["dflash.logit_scale"] == 0.5
    assert found["dflash.final_logit_softcapping"] == 30
    assert found["dflash.embedding_scale"] == 2
    assert found["dflash.attention.sliding_window"] == 64
    assert found["dflash.attention.sliding_window_pattern"] == [False, False]
    assert found["tokenizer.ggml.mask_token_id"] == 7


def test_a_draft_needs_its_target_and_others_have_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--target FOLDER"):
        convert(DRAFTS / "qwen3", tmp_path / "draft.gguf")
    with pytest.raises(ModelError, match="only a draft takes a target"):
        convert(TARGETS["qwen3"], tmp_path / "draft.gguf", target=TARGETS["qwen3"])
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        convert(DRAFTS / "qwen3", tmp_path / "draft.gguf", target=tmp_path)
    folder = changed(tmp_path / "none", {"dflash_config": {"mask_token_id": 3}})
    with pytest.raises(ModelError, match="'target_layer_ids'"):
        convert(folder, tmp_path / "draft.gguf", target=TARGETS["qwen3"])


def test_a_rope_of_neighbours_becomes_one_of_halves(tmp_path: Path) -> None:
    """The order is that of llama.cpp's converter for `DFlashDraftModel`."""
    places = [*range(0, 20, 2), *range(1, 20, 2)]  # heads have 20 elements
    stored = {name: each.data for name, each in open_checkpoint(DRAFTS / "qwen3").items()}
    folder = changed(tmp_path / "draft", {"rope_is_neox_style": False})
    convert(folder, tmp_path / "draft.gguf", "BF16", target=TARGETS["qwen3"])
    with open_gguf(tmp_path / "draft.gguf") as file:
        for name, heads in (("q_proj", 3), ("k_proj", 1), ("v_proj", 1)):
            source = np.asarray(stored[f"layers.1.self_attn.{name}.weight"]).view(np.uint16)
            rows = source.reshape(heads, 20, 40)
            wanted = rows if name == "v_proj" else rows[:, places]
            found = file.tensors[f"blk.1.attn_{name[0]}.weight"].data.view(np.uint16)
            np.testing.assert_array_equal(found.reshape(heads, 20, 40), wanted)
        norm = np.asarray(stored["layers.1.self_attn.q_norm.weight"]).view(np.uint16)[places]
        found = file.tensors["blk.1.attn_q_norm.weight"].data.view(np.uint32)
        np.testing.assert_array_equal(found, norm.astype(np.uint32) << 16)


def test_an_eagle3_draft_says_which_layers_it_reads(tmp_path: Path) -> None:
    key = "eagle_aux_hidden_state_layer_ids"
    forms: dict[str, dict[str, Any]] = {
        "nested": {key: None, "eagle_config": {key: [2, 1, 0]}},
        "usual": {key: None},
    }
    read = []
    for name, values in forms.items():
        folder = changed(tmp_path / name, {"architectures": ["LlamaForCausalLM"], **values}, "eagle3")
        convert(folder, tmp_path / f"{name}.gguf", target=TARGETS["qwen3"])
        with open_gguf(tmp_path / f"{name}.gguf") as file:
            read.append(plain(file.metadata["eagle3.target_layers"]))
    assert read == [[2, 1, 0], [2, 2, 1]]


def test_numbers_that_no_eagle3_draft_has_are_refused(tmp_path: Path) -> None:
    for name, values, reason in (
        ("layers", {"num_hidden_layers": 2}, "draft of 2 layers"),
        ("kinds", {"eagle_aux_hidden_state_layer_ids": ["a"]}, r"layer_ids\[0\]' is 'a', not int"),
        ("size", {"target_hidden_size": 41}, "fc.weight"),
    ):
        folder = changed(tmp_path / name, values, "eagle3")
        with pytest.raises(ModelError, match=reason):
            convert(folder, tmp_path / "draft.gguf", target=TARGETS["qwen3"])
    target = tmp_path / "target"
    shutil.copytree(TARGETS["qwen3"], target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    with pytest.raises(ModelError, match="d2t"):
        convert(DRAFTS / "eagle3", tmp_path / "draft.gguf", target=target)


def test_the_command_takes_a_target(tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    arguments = [str(DRAFTS / "qwen3"), str(out), "--target", str(TARGETS["qwen3"]), "--type", "F32"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert "dflash" in done.output
    assert out.is_file()
