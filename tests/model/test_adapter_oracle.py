"""Converted LoRA adapters against transformers with PEFT: the logits of tiny random models.

It makes its own checkpoints and adapters. It needs torch, transformers and PEFT, so run it by hand.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.adapter import convert_adapter
from chaski.convert.convert import convert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore::FutureWarning")]

CHECKPOINTS = Path(__file__).parents[1] / "data" / "checkpoints"
FAMILIES = ("llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "lfm2", "qwen35")
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "lora_alpha": 6},
    "stabilized": {"r": 9, "lora_alpha": 4, "use_rslora": True},
    "patterns": {"r": 5, "lora_alpha": 10},
}
PROMPT = np.random.default_rng(7).integers(4, 250, 40).tolist()
FAR_FROM_BASE = 0.05


def adapted(family: str, settings: str, folder: Path) -> Any:
    """Save a random adapter of all linear layers except the head in `folder`; return the adapted model."""
    base = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINTS / family, dtype=torch.float32)
    config = peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", **SETTINGS[settings])
    if settings == "patterns":
        names = [name for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)]
        config.rank_pattern, config.alpha_pattern = {names[0]: 3}, {names[1]: 7}
    model = peft.get_peft_model(base, config).eval()
    generator = torch.Generator().manual_seed(len(family))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.2, generator=generator)
    model.save_pretrained(folder)
    return model.double()


def logits_of(model: Any, prompt: list[int]) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family: str, settings: str, tmp_path: Path) -> None:
    model = adapted(family, settings, tmp_path / "adapter")
    base, changed = tmp_path / "base.gguf", tmp_path / "adapter.gguf"
    shutil.copytree(CHECKPOINTS / family, tmp_path / "in")
    convert(tmp_path / "in", base, "F32")
    convert_adapter(tmp_path / "adapter", changed, tmp_path / "in", "F32")
    wanted = logits_of(model, PROMPT)
    with model.disable_adapter():
        without = logits_of(model, PROMPT)
    assert np.abs(wanted - without).max() > FAR_FROM_BASE
    with chaski.load(base, context=len(PROMPT), kv_type="f32", threads=2, adapters={"it": changed}) as ours:
        np.testing.assert_allclose(ours.logits(PROMPT), without, rtol=0, atol=1e-3)
        np.testing.assert_allclose(ours.logits(PROMPT, adapter="it"), wanted, rtol=0, atol=1e-3)
        half = [("it", 0.5)]
        for module in model.modules():
            if hasattr(module, "scale_layer"):
                module.scale_layer(0.5)
        np.testing.assert_allclose(
            ours.logits(PROMPT, adapter=half), logits_of(model, PROMPT), rtol=0, atol=1e-3
        )
