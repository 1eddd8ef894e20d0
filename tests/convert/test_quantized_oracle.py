"""Whole models whose linear layers are stored by the methods' own libraries, in several files.

The tests need the packages that tools/fixtures/make_quantized.py names, so run them by hand.
"""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from tests.convert.checkpoints import DATA, written

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
if not all(map(find_spec, ("compressed_tensors", "bitsandbytes", "auto_gptq", "awq"))):
    pytest.skip("packages that quantize are not installed", allow_module_level=True)
make_quantized = pytest.importorskip("tools.fixtures.make_quantized")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
PROMPT = [5, 9, 3, 44, 21, 7, 30, 12, 8, 61]
FAMILIES = {
    "llama3": ("LlamaForCausalLM", "LlamaConfig"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config"),
}


def random(family: str) -> Any:
    model, config = (getattr(transformers, name) for name in FAMILIES[family])
    vocab_size = json.loads((DATA / family / "config.json").read_text())["vocab_size"]
    torch.manual_seed(3)
    return model(config(vocab_size=vocab_size, **SIZES)).float().eval()


def save(folder: Path, family: str, model: Any, tensors: dict[str, Any], values: dict[str, Any]) -> None:
    """Write a checkpoint whose tensors are in two files, with an index."""
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    for path in (DATA / family).glob("token*"):
        shutil.copy(path, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    names = sorted(tensors)
    index: dict[str, str] = {}
    for number, some in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        safetensors.save_file({name: tensors[name].contiguous() for name in some}, folder / file)
        index |= dict.fromkeys(some, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", make_quantized.CASES)
def test_a_model(tmp_path: Path, family: str, name: str) -> None:
    settings, maker, _ = make_quantized.CASES[name]
    model, make = random(family), maker()
    stored, plain = {}, {}
    for key, values in model.state_dict().items():
        if not key.endswith("_proj.weight"):
            stored[key] = plain[key] = values.clone()
            continue
        parts, decoded = make(values)
        module = key.removesuffix("weight")
        stored |= {module + part: each.clone() for part, each in parts.items()}
        plain[key] = decoded.clone()
    save(tmp_path / "stored" / family, family, model, stored, {"quantization_config": settings})
    save(tmp_path / "plain" / family, family, model, plain, {})
    found, wanted = written(tmp_path / "stored" / family), written(tmp_path / "plain" / family)
    assert {key: bytes(each.data) for key, each in found.tensors.items()} == {
        key: bytes(each.data) for key, each in wanted.tensors.items()
    }
    model.load_state_dict(plain)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0].numpy()
    path = tmp_path / "stored" / family / "out.gguf"
    with chaski.load(path, backend="reference", context=64, threads=1) as loaded:
        np.testing.assert_allclose(np.asarray(loaded.logits(PROMPT)), logits, rtol=0, atol=1e-3)
