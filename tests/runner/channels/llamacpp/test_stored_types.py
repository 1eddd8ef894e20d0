"""Types that our engine only stores, computed by the real llama.cpp: in Python, `run` and over HTTP.

Any bytes are valid codes of these types, so matrices are random with a reasonable scale. The package `gguf`
decodes them, and the native engine computes the same numbers as float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import chaski
from chaski.cli.main import chaski_command
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import UNSUPPORTED_TYPES, QuantType
from chaski.names import ModelName
from chaski.runner.channels.worker.client import Worker
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.rewriting import bytes_as
from tests.server.conftest import SOMEWHERE
from tests.server.running import running
from tests.tiny_llama import write_tiny_llama

gguf = pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

HIDDEN, LAYERS, HEADS, KV_HEADS = 256, 2, 4, 2
PRINTABLE = slice(0x21, 0x7F)
PROMPT = "the other end in the"
# llama.cpp rounds activations to int8. Ours does, too: with IQ4_XS, which both support, the difference is
# half as large.
NEAR = 0.2

NAMES = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0")


@dataclass(frozen=True)
class Pair:
    """The same model twice: `stored` in a type that llama.cpp computes, `plain` in float32."""

    stored: Path
    plain: Path


@pytest.fixture(params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    type = QuantType[request.param]
    with open_gguf(write_tiny_llama(tmp_path / "tiny.gguf")) as tiny:
        metadata = dict(tiny.metadata)
        vocab_size = tiny.tensors["token_embd.weight"].shape[0]
    for key in ("embedding_length", "feed_forward_length"):
        metadata[f"llama.{key}"] = HIDDEN
    kv = KV_HEADS * HIDDEN // HEADS
    rows = {"attn_q": HIDDEN, "attn_k": kv, "attn_v": kv, "attn_output": HIDDEN}
    rows |= {"ffn_gate": HIDDEN, "ffn_up": HIDDEN, "ffn_down": HIDDEN}
    shapes = {"token_embd.weight": (vocab_size, HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": (count, HIDDEN) for name, count in rows.items()}
    random = np.random.default_rng(2)
    blocks = {name: random_blocks(type, shape[0], random) for name, shape in shapes.items()}
    norms = [f"blk.{layer}.{name}" for layer in range(LAYERS) for name in ("attn_norm", "ffn_norm")]
    norms.append("output_norm")
    others: dict[str, np.ndarray] = {
        f"{name}.weight": np.ones(HIDDEN, np.float32) for name in (*norms, "output_norm")
    }
    output = np.zeros((vocab_size, HIDDEN), np.float32)  # it never ends, and writes only complete characters
    output[PRINTABLE] = random.standard_normal(output[PRINTABLE].shape) / HIDDEN**0.5
    others["output.weight"] = output
    same = {name: (array, QuantType.F32) for name, array in others.items()}
    stored = {name: bytes_as(found, type, shapes[name]) for name, found in blocks.items()}
    plain = {name: (values_of(found, type), QuantType.F32) for name, found in blocks.items()}
    write_gguf(tmp_path / "stored.gguf", metadata, {**stored, **same})
    write_gguf(tmp_path / "plain.gguf", metadata, {**plain, **same})
    return Pair(tmp_path / "stored.gguf", tmp_path / "plain.gguf")


def random_blocks(type: QuantType, rows: int, random: np.random.Generator) -> np.ndarray:
    """Return random codes for rows of one block each, with a scale that keeps the size of products."""
    blocks = random.integers(0, 256, (rows, type.block_bytes), np.uint8)
    if type.name.startswith("TQ"):
        blocks[:, :-2] = random.integers(0, 0xAA, (rows, type.block_bytes - 2), np.uint8)
    if type is QuantType.TQ2_0:  # code 3 is unused
        blocks[:, :-2] &= ~(blocks[:, :-2] >> 1) | 0xAA
    set_scale(blocks, type, 1.0)
    set_scale(blocks, type, 1.5 / HIDDEN**0.5 / float(values_of(blocks, type).std()))
    return blocks


def set_scale(blocks: np.ndarray, type: QuantType, scale: float) -> None:
    """Write a block's float16 scale at the place that the type defines."""
    half = np.float16(scale)
    if type is QuantType.IQ1_M:  # four bits in each of four words
        words = blocks[:, -8:].view(np.uint16)
        nibbles = int(half.view(np.uint16)) >> np.arange(0, 16, 4) & 0xF
        words[:] = words & 0x0FFF | (nibbles << 12).astype(np.uint16)
    else:
        place = slice(-2, None) if type.name.startswith("TQ") else slice(0, 2)
        blocks[:, place] = np.frombuffer(half.tobytes(), np.uint8)


def values_of(blocks: np.ndarray, type: QuantType) -> np.ndarray:
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType[type.name]).astype(np.float32)


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "1")


def test_the_numbers_of_a_stored_type(pair: Pair, one_core: None) -> None:
    """llama.cpp's scores of each token equal those that ours computes from the same numbers."""
    with Worker(pair.stored) as worker:
        assert worker.info().engine == "llama.cpp"
        answer = worker.generate(PROMPT, temperature=0, num_predict=16, logprobs=True, top_logprobs=5)
    with chaski.load(pair.plain) as model:
        prompt = model.tokenize(PROMPT)
        logits = model.logits([*prompt, *answer.token_ids]).astype(np.float64)[len(prompt) - 1 : -1]
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert len(answer.logprobs) == 16
    assert logprobs.std() > 0.5, "the model has opinions"
    chosen = [top for token in answer.logprobs for top in token.top_logprobs]
    rows = np.repeat(np.arange(16), 5)
    differences = np.abs([top.logprob for top in chosen] - logprobs[rows, [top.token_id for top in chosen]])
    assert differences.max() < NEAR
    assert differences.mean() < NEAR / 4
    regret = logprobs.max(axis=1) - logprobs[np.arange(16), list(answer.token_ids)]
    assert regret.max() < NEAR, "each token is the likeliest one, or nearly so"


def test_every_type_of_llama_cpp_is_known_here() -> None:
    import xllamacpp

    theirs = {name.removeprefix("GGML_TYPE_"): int(n) for name, n in xllamacpp.ggml_type.__members__.items()}
    known = {type.name: int(type) for type in QuantType}
    assert theirs.pop("COUNT") > max(theirs.values())
    assert {name: n for name, n in theirs.items() if n not in UNSUPPORTED_TYPES}.items() <= known.items()


def test_it_is_reached_by_run_and_over_http(pair: Pair, one_core: None, tmp_path: Path) -> None:
    options = {"temperature": 0, "num_predict": 8}
    with Worker(pair.stored) as worker:
        expected = worker.chat([{"role": "user", "content": PROMPT}], **options).text
    assert expected
    arguments = ("run", str(pair.stored), PROMPT, "--temperature", "0", "--num-predict", "8")
    result = CliRunner().invoke(chaski_command, arguments)
    assert (result.exit_code, result.stdout) == (0, expected + "\n")
    store = Store(tmp_path / "models")
    for _ in create(store, ModelName.parse("stored"), Recipe(sources=[pair.stored])):
        pass
    body = {"model": "stored", "messages": [{"role": "user", "content": PROMPT}], "options": options}
    with running(Settings(address=SOMEWHERE), tmp_path / "models") as server:
        answer = server.post("/api/chat", {**body, "stream": False}).json
    assert answer["message"]["content"] == expected
