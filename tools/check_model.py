"""Compare a checkpoint with transformers: logits, greedy tokens, and the same bits in every way.

    PYTHONPATH=. python -m tools.check_model CHECKPOINT [--prompt-length 90] [--types Q8_0 Q4_K_M]
    (needs torch and transformers; with xllamacpp, llama.cpp is compared too)

The checkpoint is converted to F32. The last column says whether a row holds; the exit status is 1 if one
does not. transformers computes in float64 where it can, which takes eight bytes for each weight.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import chaski
from chaski.cli.layout import table
from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from chaski.formats.requantize import plan_types, requantize
from chaski.runner.channels.worker.client import Worker

F32 = NDArray[np.float32]
Row = tuple[str, str, str]
TOLERANCE = 1e-3
GREEDY = 32


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prompt-length", type=int, default=90, help="in tokens")
    parser.add_argument("--types", nargs="*", default=["Q8_0", "Q4_K_M"], help="quantizations to compare")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        summary = convert(options.checkpoint, path, "F32")
        rows = [*_rows(options.checkpoint, path, options.prompt_length, options.types)]
    print(f"{summary.architecture}: {summary.num_tensors} tensors, {summary.num_parameters} parameters")
    print(table([("check", "found", ""), *rows], indent=""))
    return 0 if all(mark != "no" for *_, mark in rows) else 1


def _rows(checkpoint: Path, path: Path, length: int, types: Sequence[str]) -> Iterator[Row]:
    with open_gguf(path) as file:
        vocab_size = file.tensors["token_embd.weight"].shape[0]
    ids = np.random.default_rng(3).integers(3, vocab_size - 8, length).tolist()
    wanted, greedy = _transformers(checkpoint, ids)
    every = [*ids, *greedy]
    found = logits(path, every)
    difference, spread = float(np.abs(found[:length] - wanted).max()), float(wanted.std())
    yield "logits", f"differ by {difference:.1e} of a spread of {spread:.2f}", _mark(difference <= TOLERANCE)
    chosen = found[length - 1 : -1].argmax(axis=1).tolist()
    same = sum(a == b for a, b in zip(chosen, greedy, strict=True))
    yield "greedy tokens", f"{same} of {GREEDY} are those of transformers", _mark(same == GREEDY)
    for name, is_same in _ways(path, every):
        yield name, "the same bits" if is_same else "other bits", _mark(is_same)
    for type in types:
        smaller = path.with_name(f"{type}.gguf")
        with open_gguf(path) as file:
            requantize(file, smaller, plan_types(file, type))
        divergence, agreement = _compared(found, logits(smaller, every))
        yield type, f"KL divergence {divergence:.4f}, {agreement:.0%} of top tokens", ""
        pieces = logits(smaller, every, num_batch=13, threads=2)
        is_same = bool((pieces == logits(smaller, every)).all())
        yield f"{type} in chunks", "the same bits" if is_same else "other bits", _mark(is_same)
    if find_spec("xllamacpp") is not None:
        yield "llama.cpp", *_llama_cpp(path, ids, found[length - 1])


def _ways(path: Path, ids: list[int]) -> Iterator[tuple[str, bool]]:
    """Yield ways to compute the same, and whether the bits are the same."""
    usual = logits(path, ids, kv_type="f16")
    pieces = logits(path, ids, kv_type="f16", num_batch=13, threads=2)
    yield "in chunks, 2 threads", bool((pieces == usual).all())
    yield "token by token", bool((logits(path, ids, kv_type="f16", num_batch=1) == usual).all())
    options: dict[str, Any] = {"num_predict": 8, "temperature": 0, "logprobs": True}
    with chaski.load(path, context=len(ids) + 16, threads=1, parallel=1) as model:
        fresh = model.generate(ids, **options)
        model.generate([*ids[: len(ids) // 2], 3, 4, 5], num_predict=2, temperature=0)
        cached = model.generate(ids, **options)
    yield "after a cached prefix", fresh.logprobs == cached.logprobs and cached.cached_tokens > 0


def logits(path: Path, ids: list[int], **options: Any) -> F32:
    """Return chaski's logits of each token."""
    options = {"kv_type": "f32", "threads": 1, **options}
    with chaski.load(path, context=len(ids) + 1, **options) as model:
        return np.asarray(model.logits(ids))


def _transformers(checkpoint: Path, ids: list[int]) -> tuple[F32, list[int]]:
    """Return the logits of a prompt, and the greedy tokens after it."""
    import torch
    import transformers

    config = json.loads((checkpoint / "config.json").read_text())
    kind = getattr(transformers, config["architectures"][0])
    model = kind.from_pretrained(checkpoint, dtype=torch.float32).eval().double()
    model.set_attn_implementation("eager")
    greedy: list[int] = []
    with torch.no_grad():
        first = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
        for _ in range(GREEDY):
            last = model(input_ids=torch.tensor([[*ids, *greedy]]), use_cache=False).logits[0, -1]
            greedy.append(int(last.argmax()))
    return first, greedy


def _compared(exact: F32, other: F32) -> tuple[float, float]:
    """Return the mean KL divergence from exact logits, and the share of equal top tokens."""
    wanted, found = (
        values
        - np.log(np.exp(values - values.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
        - values.max(axis=1, keepdims=True)
        for values in (exact.astype(np.float64), other.astype(np.float64))
    )
    divergence = (np.exp(wanted) * (wanted - found)).sum(axis=1).mean()
    return float(divergence), float((exact.argmax(axis=1) == other.argmax(axis=1)).mean())


def _llama_cpp(path: Path, ids: list[int], row: F32) -> tuple[str, str]:
    """Compare the scores of llama.cpp's 20 most likely tokens after the prompt."""
    scores = row - np.log(np.exp(row.astype(np.float64)).sum())
    options: dict[str, Any] = {"temperature": 0, "num_predict": 1, "logprobs": True, "top_logprobs": 20}
    try:
        with Worker(path, engine="llama.cpp", parallel=1, threads=1, context=len(ids) + 8) as worker:
            (token,) = worker.generate(ids, **options).logprobs or ()
    except (chaski.ChaskiError, ValueError) as error:
        return f"does not compute it: {str(error)[:60]}", ""
    worst = max(abs(top.logprob - float(scores[top.token_id])) for top in token.top_logprobs or ())
    return f"scores differ by {worst:.1e} (its keys and values are in float16)", ""


def _mark(holds: bool) -> str:
    return "yes" if holds else "no"


if __name__ == "__main__":
    sys.exit(main())
