"""Blocks for multi-token prediction after the last layer of checkpoints.

Which blocks a file gets, and their tensors, is compared with llama.cpp's converter in
tests/model/test_families.py: the configurations `blocks`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.errors import ModelError
from chaski.formats.gguf import open_gguf
from chaski.formats.safetensors import open_safetensors
from tests.families import DATA, NAMES, checkpoint, converted, expected, settings_of
from tests.safetensors_files import write_safetensors

WITH_BLOCKS = [family for family in NAMES if "blocks" in settings_of(family)]


@pytest.mark.parametrize("family", WITH_BLOCKS)
def test_blocks_of_a_checkpoint_propose(family: str) -> None:
    with chaski.load(converted(f"{family}/blocks"), context=128, threads=1) as model:
        found = [
            model.generate(
                [7, 9, 11, 8], temperature=0, num_predict=12, ignore_eos=True, draft_num_predict=most
            )
            for most in (0, 4)
        ]
    assert found[0].token_ids == found[1].token_ids
    assert found[1].done.proposed_tokens > 0


def test_all_blocks_of_qwen_share_what_is_outside_of_their_layers(tmp_path: Path) -> None:
    source = DATA.parent / "checkpoints" / "qwen35"
    folder = shutil.copytree(source, tmp_path / "two")
    stored = open_safetensors(source / "model.safetensors")
    tensors = {name: (each.dtype, np.asarray(each.data)) for name, each in stored.items()}
    first = {name: each for name, each in tensors.items() if "mtp.layers.0." in name}
    tensors |= {name.replace(".0.", ".1."): (dtype, values[::-1]) for name, (dtype, values) in first.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    convert(folder, tmp_path / "two.gguf", "F32")
    with open_gguf(tmp_path / "two.gguf") as found:
        assert found.get("qwen35.nextn_predict_layers", int) == 2
        end = found.get("qwen35.block_count", int)
        one, other = (
            {
                name.removeprefix(prefix): info.data.tobytes()
                for name, info in found.tensors.items()
                if name.startswith(prefix)
            }
            for prefix in (f"blk.{end - 2}.", f"blk.{end - 1}.")
        )
    assert one.keys() == other.keys()
    same = {name for name in one if one[name] == other[name]}
    assert same == {f"nextn.{name}.weight" for name in ("eh_proj", "enorm", "hnorm", "shared_head_norm")}


def block_of(family: str, layers: int, tensors: dict[str, list[int]], size: int) -> dict[str, list[int]]:
    """Return the tensors of a block as published checkpoints name them, with the shapes of layers."""
    outside = {"enorm": [size], "hnorm": [size], "eh_proj": [size, 2 * size], "shared_head.norm": [size]}
    prefix = f"model.layers.{layers}."
    sources = {f"model.layers.{layers - 1}.": prefix}
    if family == "exaone4":
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
        outside = dict(zip(names, outside.values(), strict=True))
        prefix, sources = "mtp.", {f"model.layers.{layers - 1}.": "mtp.layers.0."}
    if family == "nemotron_h_moe":
        outside["final"] = outside.pop("shared_head.norm")
        stem = next(name for name in tensors if "layers.2." in name).partition("layers.")[0]
        prefix = "mtp.layers.0."
        sources = {f"{stem}layers.2.": prefix, f"{stem}layers.3.": "mtp.layers.1."}
    if family == "hy_v4":  # the last layer has no indexer of its own, and a block has no streams
        outside["final_layernorm"] = outside.pop("shared_head.norm")
        prefix = "model.mtp_layers.0."
        sources = {"model.layers.1.": prefix}
        tensors = {name: shape for name, shape in tensors.items() if ".hc_" not in name}
    found = {f"{prefix}{name}.weight": shape for name, shape in outside.items()}
    if family == "nemotron_h_moe":
        found["mtp.layers.1.final_layernorm.weight"] = found.pop(f"{prefix}final.weight")
    for old, new in sources.items():
        found |= {name.replace(old, new): each for name, each in tensors.items() if name.startswith(old)}
    return found


@pytest.mark.parametrize(
    "variant",
    [
        "bailingmoe3/usual",
        "deepseek2/v3",
        "deepseek32/yarn",
        "exaone4/small",
        "glm4/usual",
        "glm_dsa/own",
        "hy_v4/shared",
        "nemotron_h_moe/usual",
    ],
)
def test_blocks_without_a_fixture_propose(tmp_path: Path, variant: str) -> None:
    known = expected(variant)
    config = known["config"] | {"num_nextn_predict_layers": 1}
    family, layers = variant.partition("/")[0], 5 if variant.startswith("nemotron") else None
    layers = layers or config["num_hidden_layers"]
    more = block_of(family, layers, known["tensors"], config["hidden_size"])
    folder = checkpoint(tmp_path / "more", config, known["tensors"] | more, known["seed"])
    convert(folder, tmp_path / "more.gguf", "F32")
    with open_gguf(tmp_path / "more.gguf") as file:
        block = f"blk.{layers}.nextn."
        names = {name.removeprefix(block) for name in file.tensors if name.startswith(block)}
    assert names == {f"{name}.weight" for name in ("eh_proj", "enorm", "hnorm", "shared_head_norm")}
    found = []
    for path, most in ((converted(variant), 0), (tmp_path / "more.gguf", 4)):
        with chaski.load(path, context=128, threads=1) as model:
            found.append(
                model.generate(
                    [7, 9, 11, 8], temperature=0, num_predict=12, ignore_eos=True, draft_num_predict=most
                )
            )
    assert found[0].token_ids == found[1].token_ids
    assert found[1].done.proposed_tokens > 0


def test_a_checkpoint_that_lost_its_blocks_gets_none(tmp_path: Path) -> None:
    """Those that transformers saves have lost them, and their configurations still count them."""
    known = expected("glm4moe/usual")
    config = known["config"] | {"num_nextn_predict_layers": 1}
    folder = checkpoint(tmp_path / "saved", config, known["tensors"], known["seed"])
    convert(folder, tmp_path / "saved.gguf", "F32")
    with open_gguf(tmp_path / "saved.gguf") as found, open_gguf(converted("glm4moe/usual")) as usual:
        assert found.tensors.keys() == usual.tensors.keys()
        assert found.metadata.keys() == usual.metadata.keys()


def test_the_blocks_of_dspark_are_left_out(tmp_path: Path) -> None:
    known = expected("deepseek4/yarn")
    size = known["config"]["hidden_size"]
    tensors = known["tensors"] | {"mtp.0.main_proj.weight": [size, 2 * size]}
    config = known["config"] | {"num_nextn_predict_layers": 1}
    folder = checkpoint(tmp_path / "more", config, tensors, known["seed"], known["integers"])
    convert(folder, tmp_path / "more.gguf", "F32")
    with open_gguf(tmp_path / "more.gguf") as found, open_gguf(converted("deepseek4/yarn")) as usual:
        assert found.tensors.keys() == usual.tensors.keys()


def test_other_blocks_are_an_error(tmp_path: Path) -> None:
    known = expected("glm4moe/usual")
    more = {"model.layers.3.eh_proj.weight": [32, 64]}
    folder = checkpoint(tmp_path / "more", known["config"], known["tensors"] | more, known["seed"])
    with pytest.raises(ModelError, match=r"layers\.3\.eh_proj"):
        convert(folder, tmp_path / "more.gguf", "F32")
