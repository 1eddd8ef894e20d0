"""DeepSeek V4: whatever happened to its caches, a token has the bits of a fresh computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import ModelError, NotSupportedError, UnsupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.model.registry import build_model
from tests.cache_checks import assert_whole
from tests.families import converted
from tests.model_runs import Runs
from tests.vision_oracle import said

VARIANTS = ("deepseek4/yarn", "deepseek4/hashed")
SAMPLED: dict[str, Any] = {"temperature": 1.0, "logprobs": True, "num_predict": 60}
PROMPT = list(range(5, 45))


@pytest.mark.parametrize("variant", VARIANTS)
def test_sequences_that_grow_shrink_and_share(variant: str) -> None:
    random = np.random.default_rng(2)
    runs, fresh = Runs(converted(variant)), Runs(converted(variant))
    ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(12):
        first, second = (int(each) for each in random.permutation(3)[:2])
        if random.random() < 0.4 and ids[first]:
            runs.cache.copy_prefix(first, second, int(random.integers(len(ids[first]) + 1)))
            ids[second] = ids[first][: runs.cache.length(second)]
        elif ids[first]:
            runs.cache.remove(first, int(random.integers(len(ids[first]) // 2, len(ids[first]) + 1)))
            ids[first] = ids[first][: runs.cache.length(first)]
        more = {
            sequence: random.integers(300, size=min(int(random.integers(1, 50)), 128 - len(ids[sequence])))
            for sequence in (first, second)
        }
        found = runs.forward({each: tokens.tolist() for each, tokens in more.items() if len(tokens)})
        for sequence, logits in found.items():
            ids[sequence] += more[sequence].tolist()
            fresh.cache.remove(0, 0)
            np.testing.assert_array_equal(logits, fresh.forward({0: ids[sequence]})[0])


def test_a_middle_cannot_be_removed() -> None:
    runs = Runs(converted(VARIANTS[0]))
    runs.forward({0: PROMPT})
    with pytest.raises(NotSupportedError, match="cannot be removed"):
        runs.cache.remove(0, 4, 12)


def test_requests_that_fill_the_context_answer_as_alone() -> None:
    path = converted(VARIANTS[0])
    with chaski.load(path, context=64, parallel=1, prompt_cache=False) as model:
        expected = {seed: model.generate(PROMPT, **SAMPLED, seed=seed) for seed in (1, 2)}
    assert any(answer.shifted_tokens for answer in expected.values())
    with chaski.load(path, context=64, parallel=2, threads=2) as model:
        streams = {seed: model.stream(PROMPT, **SAMPLED, seed=seed) for seed in expected}
        events = {seed: [next(stream)] for seed, stream in streams.items()}
        for seed, stream in streams.items():
            events[seed] += stream
        again = model.generate(PROMPT, **SAMPLED, seed=1)
        assert_whole(model.engine)
    assert said(again) == said(expected[1])
    for seed, (*texts, _) in events.items():
        assert tuple(token for text in texts for token in text.token_ids) == expected[seed].token_ids
        assert tuple(entry for text in texts for entry in text.logprobs) == expected[seed].logprobs


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.compress_ratios", np.array([0, 4, 12, 4]), r"has 4 numbers for 4 layers, among them 12"),
        ("attention.compress_ratios", np.array([0, 4]), r"has 2 numbers for 4 layers"),
        ("attention.output_group_count", 3, "is 3, which does not divide the 4 heads"),
        ("hyper_connection.sinkhorn_iterations", 100000, "4 streams and 100000 iterations"),
        ("hyper_connection.count", 0, "0 streams"),
        ("expert_gating_func", 5, "expert_gating_func = 5 is not supported"),
    ],
)
def test_numbers_that_no_model_has_are_refused(key: str, value: Any, message: str) -> None:
    with open_gguf(converted(VARIANTS[0])) as file:
        changed = GGUFFile(file.path, {**file.metadata, f"deepseek4.{key}": value}, file.tensors)
        with pytest.raises((ModelError, UnsupportedError), match=message):
            build_model(changed)


def test_biases_for_images_are_left_out(tmp_path: Path) -> None:
    with open_gguf(converted(VARIANTS[0])) as file:
        arrays = {name: dequantize(info.data, info.type, info.shape) for name, info in file.tensors.items()}
        arrays["blk.1.exp_probs_b_vl.bias"] = np.zeros(6, np.float32)
        tensors = {name: (array, QuantType.F32) for name, array in arrays.items()}
        write_gguf(tmp_path / "more.gguf", file.metadata, tensors)
    with chaski.load(converted(VARIANTS[0])) as plain, chaski.load(tmp_path / "more.gguf") as more:
        assert (np.asarray(more.logits(PROMPT)) == np.asarray(plain.logits(PROMPT))).all()


def test_a_table_with_an_expert_too_many_is_refused(tmp_path: Path) -> None:
    with open_gguf(converted(VARIANTS[0])) as file:
        arrays = {name: dequantize(info.data, info.type, info.shape) for name, info in file.tensors.items()}
        arrays["blk.0.ffn_gate_tid2eid.weight"][3, 1] = 6
        tensors = {name: (array, QuantType.F32) for name, array in arrays.items()}
        write_gguf(tmp_path / "wrong.gguf", file.metadata, tensors)
    with pytest.raises(ModelError, match=r"blk.0.ffn_gate_tid2eid.weight names expert 6 of 6"):
        chaski.load(tmp_path / "wrong.gguf")
