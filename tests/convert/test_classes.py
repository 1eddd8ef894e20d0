"""The classes of llama.cpp's converter whose architectures run natively, and the reasons for gaps."""

from __future__ import annotations

import json

import pytest

from chaski.convert.families import ENCODERS, TEXT_PARTS, families
from chaski.model.registry import ARCHITECTURES
from tests.convert.checkpoints import DATA

CLASSES: dict[str, str] = json.loads((DATA.parent / "llama_cpp_classes.json").read_text())
"""GGUF's architecture by the name in `config.json`, as of October 2026."""

_DRAFT = (
    "a draft with more parts than DFlash has, or with other names; files of llama.cpp's converter may load"
)
LEFT_OUT = {
    **dict.fromkeys(
        (*("DSparkSpeculator", "DeepseekV4DSparkModel", "Gemma4DSparkModel", "MuseGlimmerAssistantModel"),),
        _DRAFT,
    ),
    "GrokForCausalLM": "the names of its tensors are those of a checkpoint that is not published any more",
    **dict.fromkeys(
        (
            "BailingMoeV3VLForConditionalGeneration",
            *("Step3p7ForConditionalGeneration", "YoutuVLForConditionalGeneration"),
        ),
        "its pictures have an encoder that is not supported",
    ),
    "MiMoV2ForCausalLM": "its checkpoints store queries, keys and values by the ranks of a computation",
    "Lfm2BidirectionalModel": "its convolutions look ahead, which the native model does not do",
    "Lfm25AudioTokenizer": "makes sounds of tokens",
    "Sarashina2VisionForCausalLM": "two of its tensors have one name without the prefixes of its parts",
    "UMT5Model": "has no output matrix, so it makes no text",
    "UltravoxModel": "has no text model in its checkpoint, but the name of another one",
    "UnlimitedOCRForCausalLM": "attends within a window that readers of its files ignore",
    "VLlama3ForCausalLM": "no checkpoint is published that its form could be read from",
}
"""The reasons why classes are not converted."""


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_each_is_converted_or_left_out_for_a_reason(name: str) -> None:
    converted = name in families() or name in ENCODERS or name in TEXT_PARTS
    assert converted != (name in LEFT_OUT)


def test_the_list_is_of_native_architectures() -> None:
    drafts = {"dflash", "eagle3", "gemma4-assistant"}
    assert set(CLASSES.values()) <= ARCHITECTURES.keys() | drafts
    assert len(CLASSES) == 249
    assert LEFT_OUT.keys() <= CLASSES.keys()
