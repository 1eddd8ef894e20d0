"""The proposals of a model's heads against those of llama.cpp on the same file: needs xllamacpp, run by hand.

llama.cpp tells how many tokens were proposed and accepted. With the same number at a time, and greedily, that
is the same for each prompt only where the same tokens are proposed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.runner.speculation.ngram import NgramSpeculator
from chaski.runner.speculation.speculator import PayingLength
from tests.own_heads import write_with_heads

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

PROMPTS = [np.random.default_rng(seed).integers(5, 60, 20 + 3 * seed).tolist() for seed in range(8)]
OPTIONS = {"num_predict": 64, "temperature": 0, "ignore_eos": True}

# In a process of its own: its threads outlive the server.
_SCRIPT = """
import json, os, sys
import xllamacpp as x
path, most, prompts = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
params = x.CommonParams()
params.model.path = path
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 256, 1, 1
params.warmup = params.fit_params = False
params.no_extra_bufts = params.load_mtp = True
params.cache_type_k = params.cache_type_v = x.ggml_type.GGML_TYPE_F32
params.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
params.speculative.draft.n_max, params.speculative.draft.n_min = most, 0
params.speculative.draft.p_min = 0.0
server = x.Server(params)
asked = {"n_predict": 64, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
timings = [server.handle_completions({"prompt": ids, **asked})["timings"] for ids in prompts]
print(json.dumps([[each["draft_n"], each["draft_n_accepted"]] for each in timings]))
sys.stdout.flush()
os._exit(0)
"""


def of_llama_cpp(path: Path, most: int) -> list[list[int]]:
    command = [sys.executable, "-c", _SCRIPT, str(path), str(most), json.dumps(PROMPTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(path: Path) -> list[list[int]]:
    with chaski.load(path, context=256, kv_type="f32", threads=1) as model:
        done = [model.generate(ids, **OPTIONS).done for ids in PROMPTS]
    return [[each.proposed_tokens, each.accepted_tokens] for each in done]


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_as_many_are_accepted(name: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def always(*arguments: Any) -> int:
        return most

    monkeypatch.setattr(PayingLength, "current", always)
    monkeypatch.setattr(NgramSpeculator, "propose", lambda self: [])
    path = write_with_heads(name, tmp_path / "model.gguf", said_by_layers=1.0)
    expected, found = of_llama_cpp(path, most), ours(path)
    # Experts that are nearly as likely may be chosen otherwise.
    differing = [pair for pair in zip(expected, found, strict=True) if pair[0] != pair[1]]
    assert len(differing) <= (0 if name == "qwen35" else 2), (expected, found)
    assert sum(accepted for _, accepted in found) > (50 if name == "qwen35" else 5)
