"""The proposals of heads and attached drafts against llama.cpp's on the same files; needs xllamacpp.

llama.cpp reports the numbers of proposed and accepted tokens. With the same number at a time, and greedily,
they are equal for each prompt only if the same tokens are proposed.
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
from tests.assistants import write_assistant, write_quiet_gemma
from tests.drafts import rewritten, write_dspark, write_pair
from tests.eagle3 import write_eagle3, write_quieter
from tests.nextn import write_with_blocks
from tests.own_heads import write_with_heads

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

PROMPTS = [np.random.default_rng(seed).integers(5, 60, 20 + 3 * seed).tolist() for seed in range(8)]
OPTIONS = {"num_predict": 64, "temperature": 0, "ignore_eos": True}

Said = list[Any]
"""An answer, and the numbers of proposed and accepted tokens."""

# In a separate process, since its threads outlive the server.
_SCRIPT = """
import json, os, sys
import xllamacpp as x
path, most, prompts, kind, draft = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), *sys.argv[4:]
params = x.CommonParams()
params.model.path = path
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 256, 1, 1
params.warmup = params.fit_params = False
params.no_extra_bufts, params.load_mtp = True, not draft
params.cache_type_k = params.cache_type_v = x.ggml_type.GGML_TYPE_F32
params.speculative.types = [getattr(x.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_DRAFT_{kind}")]
params.speculative.draft.mparams.path = draft
params.speculative.draft.cpuparams.n_threads = 1
params.speculative.draft.cache_type_k = params.speculative.draft.cache_type_v = x.ggml_type.GGML_TYPE_F32
params.speculative.draft.n_max, params.speculative.draft.n_min = most, 0
params.speculative.draft.p_min = 0.0
server = x.Server(params)
asked = {"n_predict": 64, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
found = [server.handle_completions({"prompt": ids, **asked}) for ids in prompts]
counts = [(each["timings"]["draft_n"], each["timings"]["draft_n_accepted"]) for each in found]
print(json.dumps([[each["choices"][0]["text"], *count] for each, count in zip(found, counts)]))
sys.stdout.flush()
os._exit(0)
"""


def of_llama_cpp(path: Path, most: int, kind: str = "MTP", draft: Path | None = None) -> list[Said]:
    command = [sys.executable, "-c", _SCRIPT, str(path), str(most), json.dumps(PROMPTS)]
    command += [kind, str(draft or "")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found: list[Said] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(path: Path, draft: Path | None = None) -> list[Said]:
    with chaski.load(path, context=256, kv_type="f32", threads=1, draft=draft) as model:
        found = [model.generate(ids, **OPTIONS) for ids in PROMPTS]
    return [[each.text, each.done.proposed_tokens, each.done.accepted_tokens] for each in found]


@pytest.fixture(params=[1, 3])
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the number of tokens that are always proposed."""
    number: int = request.param
    monkeypatch.setattr(PayingLength, "current", lambda *arguments: number)
    monkeypatch.setattr(NgramSpeculator, "propose", lambda self: [])
    return number


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_as_many_are_accepted(name: str, most: int, tmp_path: Path) -> None:
    path = write_with_heads(name, tmp_path / "model.gguf", said_by_layers=1.0)
    expected, found = of_llama_cpp(path, most), ours(path)
    # Nearly equally likely experts may be chosen differently.
    differing = [pair for pair in zip(expected, found, strict=True) if pair[0][1:] != pair[1][1:]]
    assert len(differing) <= (0 if name == "qwen35" else 2), (expected, found)
    assert sum(accepted for _, _, accepted in found) > (50 if name == "qwen35" else 5)


# Others are not computed by llama.cpp. It stores keys of later blocks of a chain from the model's own states.
@pytest.mark.parametrize(
    "family", ["cohere2moe/usual", "deepseek2/v3", "glm4moe/usual", "hy_v3/usual", "step35/usual"]
)
def test_as_many_of_a_block_are_accepted(family: str, most: int, tmp_path: Path) -> None:
    path = write_with_blocks(family, tmp_path / "model.gguf", blocks=1, said_by_layers=0.2)
    expected, found = of_llama_cpp(path, most), ours(path)
    # Nearly equally likely experts may be chosen differently, and a different answer has other proposals.
    same = [pair for pair in zip(expected, found, strict=True) if pair[0][0] == pair[1][0]]
    assert len(same) >= 2
    assert sum(one != other for one, other in same) <= 1, same
    assert sum(accepted for _, _, accepted in found) > 20


EAGLE3: dict[str, tuple[str, dict[str, Any]]] = {
    "usual": ("qwen3", {}),
    "fewer tokens": ("qwen3", {"num_proposed": 50}),
    "newer": ("qwen3", {"is_newer": True}),
    "its own embeddings": ("qwen3", {"has_own_embeddings": True}),
    "other size": ("qwen3", {"size": 96}),
    "hybrid": ("qwen35", {}),
    "gemma": ("gemma4", {}),
}


@pytest.mark.parametrize("case", EAGLE3)
def test_as_many_of_an_eagle3_draft_are_accepted(case: str, most: int, tmp_path: Path) -> None:
    name, form = EAGLE3[case]
    path = write_quieter(name, tmp_path / "model.gguf")
    draft = write_eagle3(path, tmp_path / "draft.gguf", **form)
    expected, found = of_llama_cpp(path, most, "EAGLE3", draft), ours(path, draft)
    # A random model has nearly equal logits, and a different answer has other proposals.
    same = [pair for pair in zip(expected, found, strict=True) if pair[0][0] == pair[1][0]]
    assert len(same) >= 6
    assert all(one == other for one, other in same), same
    assert sum(accepted for _, _, accepted in found) > 20


# Without a setting in the file, llama.cpp shows a whole block in layers with a window, see docs/decisions.md.
DFLASH = [("qwen3", None), ("qwen3", True), ("qwen35", True), ("qwen35", False)]


@pytest.mark.parametrize(("name", "is_causal"), DFLASH, ids=str)
def test_as_many_of_a_dflash_draft_are_accepted(
    name: str, is_causal: bool | None, most: int, tmp_path: Path
) -> None:
    path, made = tmp_path / "model.gguf", tmp_path / "made.gguf"
    write_pair(name, path, made)
    draft = rewritten(made, tmp_path / "draft.gguf", {"dflash.attention.causal": is_causal})
    expected, found = of_llama_cpp(path, most, "DFLASH", draft), ours(path, draft)
    # Bytes that are not text are spelled differently, so answers are not compared, and some differ.
    differing = [pair for pair in zip(expected, found, strict=True) if pair[0][1:] != pair[1][1:]]
    assert len(differing) <= 2, differing
    assert sum(accepted for _, _, accepted in found) > (100 if name == "qwen3" else 0)


@pytest.mark.parametrize("from_anchor", [True, False])
def test_as_many_of_a_dspark_draft_are_accepted(
    from_anchor: bool, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made, draft = tmp_path / "model.gguf", tmp_path / "made.gguf", tmp_path / "draft.gguf"
    write_pair("qwen3", path, made)
    write_dspark(made, draft, from_anchor=from_anchor)
    monkeypatch.setattr("chaski.model.markov_program.paying", len)
    expected, found = of_llama_cpp(path, most, "DSPARK", draft), ours(path, draft)
    differing = [pair for pair in zip(expected, found, strict=True) if pair[0][1:] != pair[1][1:]]
    assert len(differing) <= 2, differing
    assert sum(accepted for _, _, accepted in found) > 0


@pytest.mark.parametrize("name", ["gemma4", "gemma4-small"])
def test_as_many_of_an_assistant_are_accepted(name: str, most: int, tmp_path: Path) -> None:
    path = write_quiet_gemma(name, tmp_path / "model.gguf", said_by_layers=1.3)
    draft = write_assistant(path, tmp_path / "draft.gguf")
    expected, found = of_llama_cpp(path, most, "MTP", draft), ours(path, draft)
    assert found == expected
    assert sum(said[2] for said in found) > 50
