"""Every architecture against transformers, with the same bits however its logits are computed.

tools/fixtures/make_architectures.py makes the files and the expected logits. The prompt is longer than every
window, chunk and trained context of the models.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.errors import ModelError, NotSupportedError
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.formats.requantize import plan_types, requantize
from chaski.ml.graph import DType
from tests import backends, families
from tests.backends import USUAL
from tests.model_runs import Runs
from tests.rewriting import bytes_as
from tests.tiers import long_after
from tests.vision_oracle import BACKENDS, F32

DATA = Path(__file__).parents[1] / "data" / "architectures"
STORED = sorted(path.stem for path in DATA.glob("*.gguf"))
NAMES = [*STORED, *families.FIRST]


@cache
def prompt_of(name: str) -> list[int]:
    if name in STORED:
        return expected(name)[0]
    ids: list[int] = families.expected(name)["prompt"].tolist()
    return ids


def file_of(name: str) -> Path:
    return DATA / f"{name}.gguf" if name in STORED else families.converted(name)


@cache
def expected(name: str) -> tuple[list[int], F32]:
    with np.load(DATA / f"{name}.npz") as arrays:
        return arrays["ids"].tolist(), arrays["logits"]


def logits(
    path: Path,
    ids: list[int],
    backend: str = USUAL,
    kv_type: str = "f16",
    threads: int = 1,
    num_batch: int = 512,
) -> F32:
    with chaski.load(
        path, backend=backend, kv_type=kv_type, context=128, threads=threads, num_batch=num_batch
    ) as model:
        return np.asarray(model.logits(ids))


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
@pytest.mark.parametrize("name", STORED)
def test_logits_equal_those_of_transformers(name: str, backend: str, tolerance: float) -> None:
    ids, wanted = expected(name)
    found = logits(DATA / f"{name}.gguf", ids, backend, kv_type="f32")
    assert wanted.std() > 0.3
    if name.endswith("mxfp4") and backend == USUAL:  # which rounds activations for such matrices to int8
        tolerance = 0.3 * float(wanted.std())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)


# As in the script: number of tokens, dropped tokens, and ends of the next parts.
BEGIN, DROPPED, PARTS = 60, range(4, 24), [61, 75, 90]


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
@pytest.mark.parametrize("name", STORED)
def test_what_follows_a_shift_equals_that_of_transformers(name: str, backend: str, tolerance: float) -> None:
    """Values computed from dropped tokens stay, and are rotated to their new positions."""
    ids, _ = expected(name)
    with np.load(DATA / f"{name}.npz") as arrays:
        wanted = arrays.get("shifted")
    runs = Runs(DATA / f"{name}.gguf", backend, DType.F32)
    runs.forward({0: ids[:BEGIN]})
    if wanted is None or backend == "foreign":  # a recurrent state cannot drop tokens; no whole pages
        with pytest.raises(NotSupportedError):
            runs.cache.remove(0, DROPPED.start, DROPPED.stop)
        return
    runs.cache.remove(0, DROPPED.start, DROPPED.stop)
    if name.endswith("mxfp4") and backend == USUAL:
        tolerance = 0.3 * float(wanted.std())
    for begin, end, logits_there in zip([BEGIN, *PARTS], PARTS, wanted, strict=False):
        found = runs.forward({0: ids[begin:end]})[0]
        np.testing.assert_allclose(found, logits_there, rtol=0, atol=tolerance)


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=long_after(1, ["as it is", "Q4_0"]))
def path(name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file, and one with quantized matrices, whose products use other kernels."""
    source = file_of(name)
    if request.param == "as it is":
        return source
    if name.endswith("mxfp4"):
        pytest.skip("is quantized already")
    target = tmp_path_factory.mktemp("quantized") / f"{name.replace('/', '-')}.gguf"
    with open_gguf(source) as file:
        requantize(file, target, plan_types(file, request.param))
    return target


@cache
def whole_of(name: str, path: Path) -> F32:
    return logits(path, prompt_of(name))


def test_logits_do_not_depend_on_chunks_and_threads(name: str, path: Path) -> None:
    ids, whole = prompt_of(name), whole_of(name, path)
    np.testing.assert_array_equal(logits(path, ids, num_batch=13, threads=2), whole)
    np.testing.assert_array_equal(logits(path, ids, num_batch=1), whole)


def test_logits_do_not_depend_on_other_sequences(name: str, path: Path) -> None:
    ids, whole = prompt_of(name), whole_of(name, path)
    others = ids[:1] + ids[:40:-1]
    runs = Runs(path)
    runs.forward({1: others[:20]})
    for begin, end in ((0, 30), (30, 31), (31, 52), (52, len(ids))):
        part = ids[begin:end]
        found = runs.forward(
            {1: others[20 + begin // 3 : 20 + max(end // 3, begin // 3 + 1)], 0: part, 2: part}
        )
        np.testing.assert_array_equal(found[0], whole[end - 1])
        np.testing.assert_array_equal(found[2], whole[end - 1])


def test_a_cached_prefix_gives_the_same_text(name: str, path: Path) -> None:
    ids = prompt_of(name)
    with chaski.load(path, context=128, parallel=1) as model:
        fresh = model.generate(ids[:80], num_predict=8, temperature=0, logprobs=True)
        model.generate(ids[:60] + ids[5:20], num_predict=4, temperature=0)
        cached = model.generate(ids[:80], num_predict=8, temperature=0, logprobs=True)
    assert cached.token_ids == fresh.token_ids
    assert cached.logprobs == fresh.logprobs


@pytest.mark.parametrize(
    ("name", "tensor", "change", "message"),
    [
        ("qwen3moe", "blk.1.ffn_up_exps.weight", None, "tensor blk.1.ffn_up_exps.weight .* is missing"),
        ("gpt-oss", "blk.0.attn_sinks.weight", None, "tensor blk.0.attn_sinks.weight .* is missing"),
        ("gemma3", "blk.0.attn_gate.weight", (2, 2), "has no use for tensors blk.0.attn_gate.weight"),
        ("llama4", "blk.1.ffn_down_exps.weight", (3, 32, 32), r"\(3, 32, 32\), but .* \(4, 32, 32\)"),
        ("phi3-long", "rope_factors_long.weight", None, "one of rope_factors_short and .* is missing"),
        ("phi3", "blk.0.attn_qkv.weight", (100, 64), "tensor blk.0.attn_q.weight .* is missing"),
        ("gemma3n", "altup_proj.weight", (2, 33, 33), r"has shape \(2, 33, 33\), but .* \(3, 33, 33\)"),
        ("gemma4-moe", "blk.1.ffn_down_exps.scale", None, "tensor blk.1.ffn_down_exps.scale .* is missing"),
        ("gemma4", "blk.1.attn_k.weight", None, "tensor blk.1.attn_k.weight .* is missing"),
        ("gemma4-small", "blk.4.attn_kv.weight", (2, 2), "has no use for tensors blk.4.attn_kv.weight"),
        ("lfm2", "blk.0.shortconv.conv.weight", (32, 4), r"has shape \(32, 4\), but .* \(32, 3\)"),
    ],
)
def test_what_a_file_has_too_much_or_too_little_is_refused(
    name: str, tensor: str, change: tuple[int, ...] | None, message: str, tmp_path: Path
) -> None:
    with open_gguf(DATA / f"{name}.gguf") as file:
        arrays = {key: dequantize(info.data, info.type, info.shape) for key, info in file.tensors.items()}
        if change is None:
            del arrays[tensor]
        else:
            arrays[tensor] = np.zeros(change, np.float32)
        tensors = {key: (array, QuantType.F32) for key, array in arrays.items()}
        write_gguf(tmp_path / "changed.gguf", file.metadata, tensors)
    with pytest.raises(ModelError, match=message):
        chaski.load(tmp_path / "changed.gguf")


def test_the_factors_of_a_rope_are_chosen_by_the_context_of_the_model(tmp_path: Path) -> None:
    """The length of a request does not choose them, since its answer would then depend on the cache."""
    path = DATA / "phi3-short.gguf"  # trained for 128 tokens
    ids, wanted = expected("phi3-short")
    swapped = tmp_path / "swapped.gguf"
    with open_gguf(path) as file:
        names = {"rope_factors_short.weight": "rope_factors_long.weight"}
        names |= {long: short for short, long in names.items()}
        arrays = {
            names.get(key, key): dequantize(info.data, info.type, info.shape)
            for key, info in file.tensors.items()
        }
        write_gguf(swapped, file.metadata, {key: (array, QuantType.F32) for key, array in arrays.items()})
    with chaski.load(path, context=129) as model, chaski.load(swapped, context=128) as other:
        np.testing.assert_array_equal(found := model.logits(ids[:20]), other.logits(ids[:20]))
    assert np.abs(found - wanted[:20]).max() > 0.1


def test_matrices_that_a_layer_has_and_does_not_use(tmp_path: Path) -> None:
    """Published files contain keys and values of layers that read those of others. They take no memory."""
    path = DATA / "gemma4-small.gguf"
    with open_gguf(path) as file:
        tensors = {
            key: (dequantize(info.data, info.type, info.shape), QuantType.F32)
            for key, info in file.tensors.items()
        }
        shapes = {"attn_k.weight": (40, 32), "attn_v.weight": (40, 32), "attn_k_norm.weight": (40,)}
        tensors |= {f"blk.4.{key}": (np.ones(s, np.float32), QuantType.F32) for key, s in shapes.items()}
        write_gguf(tmp_path / "more.gguf", file.metadata, tensors)
    ids, _ = expected("gemma4-small")
    np.testing.assert_array_equal(logits(tmp_path / "more.gguf", ids), logits(path, ids))
    with chaski.load(path) as model, chaski.load(tmp_path / "more.gguf") as other:
        assert other.memory().weights == model.memory().weights


@pytest.mark.parametrize("name", ["gemma2", "phi3", "qwen3"])
def test_joined_tensors(name: str, tmp_path: Path) -> None:
    """Files may store the rows of several matrices together or separately. The bits are the same."""
    joined = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_gate_up": ("ffn_gate", "ffn_up")}
    with open_gguf(DATA / f"{name}.gguf") as file:
        arrays = {key: dequantize(info.data, info.type, info.shape) for key, info in file.tensors.items()}
        for layer in range(file.get(f"{file.architecture}.block_count", int)):
            block = f"blk.{layer}."
            if name == "phi3":
                q, k, v = np.split(arrays.pop(f"{block}attn_qkv.weight"), [64, 96])
                gate, up = np.split(arrays[f"{block}ffn_up.weight"], 2)
                parts = {"attn_q": q, "attn_k": k, "attn_v": v, "ffn_gate": gate, "ffn_up": up}
                arrays |= {f"{block}{part}.weight": array for part, array in parts.items()}
            else:
                for whole, names in joined.items():
                    rows = [arrays.pop(f"{block}{part}.weight") for part in names]
                    arrays[f"{block}{whole}.weight"] = np.concatenate(rows)
        tensors = {key: (array, QuantType.F32) for key, array in arrays.items()}
        write_gguf(tmp_path / "other.gguf", file.metadata, tensors)
    ids, _ = expected(name)
    np.testing.assert_array_equal(logits(tmp_path / "other.gguf", ids), logits(DATA / f"{name}.gguf", ids))


@pytest.mark.parametrize("backend", backends.BACKENDS)
@pytest.mark.parametrize("name", ["qwen3moe", "gpt-oss", "gpt-oss-mxfp4", "llama4"])
def test_gate_and_up_of_experts_as_one_tensor(name: str, backend: str, tmp_path: Path) -> None:
    """In llama.cpp's newer files, each expert's gate rows come first. The bits are the same."""
    with open_gguf(DATA / f"{name}.gguf") as file:
        tensors = {}
        for key, info in file.tensors.items():
            if ".ffn_up_exps." in key:
                continue
            parts = [info]
            if ".ffn_gate_exps." in key:
                parts.append(file.tensors[key.replace("_gate_", "_up_")])
                key = key.replace("_gate_", "_gate_up_")
            of_experts = [part.data.reshape(part.shape[0], -1) for part in parts]
            shape = (
                (info.shape[0], len(parts) * info.shape[1], *info.shape[2:]) if len(parts) > 1 else info.shape
            )
            data = np.concatenate(of_experts, axis=1).ravel() if len(parts) > 1 else info.data
            tensors[key] = bytes_as(data, info.type, shape)
        write_gguf(tmp_path / "fused.gguf", file.metadata, tensors)
    ids, _ = expected(name)
    found = logits(tmp_path / "fused.gguf", ids, backend)
    np.testing.assert_array_equal(found, logits(DATA / f"{name}.gguf", ids, backend))


@pytest.mark.parametrize("quantized", [("gate",), ("up", "down"), ("down",)], ids=" ".join)
@pytest.mark.parametrize("name", ["qwen3moe", "gpt-oss", "llama4", "mixtral"])
def test_experts_of_two_types(name: str, quantized: tuple[str, ...], tmp_path: Path) -> None:
    """One of gate and up reads int8 blocks, the other floats. Rounding changes a few choices of experts."""
    with open_gguf(DATA / f"{name}.gguf") as file:
        tensors = {}
        for key, info in file.tensors.items():
            array = dequantize(info.data, info.type, info.shape)
            is_chosen = key.endswith("exps.weight") and any(f"_{part}_" in key for part in quantized)
            tensors[key] = (array, QuantType.Q8_0 if is_chosen else QuantType.F32)
        write_gguf(tmp_path / "two.gguf", file.metadata, tensors)
    ids, wanted = expected(name)
    found = logits(tmp_path / "two.gguf", ids, kv_type="f32")
    assert np.quantile(np.abs(found - wanted), 0.9) < 0.1 * float(wanted.std())
    np.testing.assert_array_equal(
        logits(tmp_path / "two.gguf", ids, kv_type="f32", num_batch=7, threads=2), found
    )
