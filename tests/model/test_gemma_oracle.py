"""Converted Gemmas of odd sizes against transformers: logits, greedy answers and embeddings.

It covers heads of 20 and 80 elements, 1, 3 and 7 query heads per key/value head, and odd vocabularies. It
makes its own checkpoints. It needs torch and transformers, so run it by hand.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle

CHECKPOINTS = Path(__file__).parents[1] / "data" / "checkpoints"
ANSWER = 32
SHAPES = [(20, 1), (80, 3), (20, 7)]
"""The size of heads, and the number of query heads per key/value head."""

NEAR, FAR = "sliding_attention", "full_attention"
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
ROPES = {NEAR: PLAIN, FAR: {**PLAIN, "rope_theta": 50000.0}}


def sizes(head: int, ratio: int, layers: int, **more: Any) -> dict[str, Any]:
    kv_heads = 1 if ratio > 1 else 3
    return {
        "hidden_size": 63,
        "intermediate_size": 72,
        "num_hidden_layers": layers,
        "num_attention_heads": ratio * kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "max_position_embeddings": 256,
        "rms_norm_eps": 2e-5,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        **more,
    }


def configured(family: str, head: int, ratio: int) -> Any:
    """Return the configuration of a tiny model."""
    windows = {"sliding_window": 8, "query_pre_attn_scalar": head}
    if family == "gemma":
        rope = {"rope_parameters": PLAIN, "hidden_activation": "gelu_pytorch_tanh"}
        return transformers.GemmaConfig(**sizes(head, ratio, 3, **rope))
    if family == "gemma2":
        return transformers.Gemma2Config(**sizes(head, ratio, 4, rope_parameters=PLAIN, **windows))
    if family in ("gemma3", "gemma-embedding"):
        more = {"rope_parameters": ROPES, "use_bidirectional_attention": family != "gemma3", **windows}
        return transformers.Gemma3TextConfig(**sizes(head, ratio, 7, **more))
    if family == "gemma3n":
        more = {
            "rope_parameters": ROPES,
            "sliding_window": 8,
            "vocab_size_per_layer_input": 361,
            "hidden_size_per_layer_input": 12,
            "layer_types": [NEAR, FAR] * 3,
            "num_kv_shared_layers": 2,
            "laurel_rank": 6,
            "activation_sparsity_pattern": [0.7, 0.0, 0.9, 0.0, 0.5, 0.0],
        }
        return transformers.Gemma3nTextConfig(**sizes(head, ratio, 6, **more))
    far = {"rope_type": "proportional", "rope_theta": 50000.0, "partial_rotary_factor": 0.25}
    more = {
        "rope_parameters": {NEAR: PLAIN, FAR: far},
        "sliding_window": 8,
        "global_head_dim": 2 * head,
        "layer_types": [NEAR, NEAR, FAR, NEAR, FAR],
        "vocab_size_per_layer_input": 361,
        "hidden_size_per_layer_input": 12,
        "num_kv_shared_layers": 2,
        "final_logit_softcapping": 6.0,
    }
    return transformers.Gemma4TextConfig(**sizes(head, ratio, 5, **more))


MODELS = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gemma3n": "Gemma3nForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
    "gemma-embedding": "Gemma3TextModel",
}


def random_model(family: str, head: int, ratio: int, folder: Path) -> Any:
    """Make a random model in double precision, and save it in `folder` with a tokenizer."""
    folder.mkdir()
    for path in (CHECKPOINTS / family).glob("tokenizer*"):
        shutil.copyfile(path, folder / path.name)
    config = configured(family, head, ratio)
    config.vocab_size = 361 if family != "gemma4" else 367
    if family == "gemma4":
        config.vocab_size_per_layer_input = 367
    model = getattr(transformers, MODELS[family])(config).float().eval()
    generator = torch.Generator().manual_seed(head + ratio)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name and parameter.ndim < 2
            centre = parameter.mean().round() if is_norm else 0.0
            spread = 0.1 if parameter.ndim < 2 else 1.2 / parameter.shape[-1] ** 0.5
            spread = 0.03 if "embed" in name else spread  # with larger embeddings, answers repeat one token
            parameter.normal_(0.0, spread, generator=generator)
            parameter += centre
    model.save_pretrained(folder)
    return model.double()


PROMPT = [2, *np.random.default_rng(7).integers(4, 355, 40).tolist()]


each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@each_shape
@pytest.mark.parametrize("family", [family for family in MODELS if family != "gemma-embedding"])
def test_logits_and_greedy_answers(family: str, shape: tuple[int, int], tmp_path: Path) -> None:
    oracle = random_model(family, *shape, tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "out.gguf", "F32")
    ids = list(PROMPT)
    with torch.no_grad():
        logits = oracle(input_ids=torch.tensor([ids])).logits[0].numpy()
        for _ in range(ANSWER):
            last = oracle(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            last[1] = -torch.inf  # the end
            ids.append(int(last.argmax()))
    with chaski.load(tmp_path / "out.gguf", context=128, kv_type="f32", threads=2) as model:
        np.testing.assert_allclose(model.logits(PROMPT), logits, rtol=0, atol=1e-3)
        answer = model.generate(PROMPT, temperature=0, num_predict=ANSWER, ignore_eos=True)
    assert list(answer.token_ids) == ids[len(PROMPT) :]


@each_shape
def test_embeddings(shape: tuple[int, int], tmp_path: Path) -> None:
    oracle = random_model("gemma-embedding", *shape, tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "out.gguf", "F32")
    texts = [PROMPT, PROMPT[:9], PROMPT[:1]]
    with torch.no_grad():
        states = [oracle(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in texts]
    wanted = torch.stack([state.mean(0) for state in states]).numpy()
    with chaski.load(tmp_path / "out.gguf", context=64, parallel=3) as model:
        found = np.asarray(model.embed(texts, normalize=False))
    assert wanted.std() > 0.1
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3)
