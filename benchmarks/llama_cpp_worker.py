"""Measure llama.cpp, through llama-cpp-python's low-level API, as `chaski bench` measures chaski.

Runs in an interpreter that has llama-cpp-python (build it with CMAKE_ARGS=-DGGML_NATIVE=ON) and prints one
JSON object with the same keys as `chaski bench --json`, and another one for every line on standard input. It
reads `--depth` tokens untimed, then times a prompt and greedy decoding after it, in `--batch` sequences at
once; `--repeat` times over.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__: list[str] = []


_BATCH = 512
# Numbers of ggml's types.
_KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}


class _Session:
    """One loaded model with one context."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._api: Any = importlib.import_module("llama_cpp.llama_cpp")
        self._silence = self._api.llama_log_callback(lambda level, text, data: None)
        self._api.llama_log_set(self._silence, ctypes.c_void_p(0))
        self._api.llama_backend_init()
        started = time.perf_counter()
        self._model = self._load(arguments)
        self._context = self._open(arguments)
        self.load_seconds = time.perf_counter() - started
        self._batch = self._api.llama_batch_init(_BATCH, 0, 1)
        self._num_vocab = self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self._model))

    def _load(self, arguments: argparse.Namespace) -> Any:
        params = self._api.llama_model_default_params()
        params.use_extra_bufts = arguments.extra_bufts
        model = self._api.llama_model_load_from_file(str(arguments.model).encode(), params)
        if not model:
            raise SystemExit(f"llama.cpp cannot load {arguments.model}")
        return model

    def _open(self, arguments: argparse.Namespace) -> Any:
        params = self._api.llama_context_default_params()
        length = arguments.depth + arguments.prompt + arguments.generate
        params.n_ctx = arguments.batch * (-(-length // 256) * 256)
        params.n_seq_max = arguments.batch
        params.kv_unified = arguments.unified
        params.type_k = params.type_v = _KV_TYPES[arguments.kv_type]
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads = params.n_threads_batch = arguments.threads
        params.flash_attn_type = int(arguments.flash)
        context = self._api.llama_init_from_model(self._model, params)
        if not context:
            raise SystemExit("llama.cpp cannot open a context")
        return context

    def random_prompts(self, count: int, length: int) -> NDArray[np.int32]:
        """Return token ids (count, length) that are the same in every run."""
        return np.random.default_rng(0).integers(0, self._num_vocab, (count, length), dtype=np.int32)

    def clear(self) -> None:
        """Forget every token."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)

    def append(self, tokens: NDArray[np.int32], position: int) -> NDArray[np.int32]:
        """Append tokens (sequences, n) at `position`; return each sequence's most probable next token."""
        last = np.empty(len(tokens), np.int32)
        rows = [
            (sequence, position + step, int(token))
            for sequence, row in enumerate(tokens)
            for step, token in enumerate(row)
        ]
        end = position + tokens.shape[1] - 1
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            self._compute(part, end)
            for index, (sequence, place, _) in enumerate(part):
                if place == end:
                    last[sequence] = self._most_probable(index)
        return last

    def _compute(self, rows: list[tuple[int, int, int]], end: int) -> None:
        """Compute one batch of (sequence, position, token), with logits for the tokens at position `end`."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (sequence, position, token) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = position == end
        code = self._api.llama_decode(self._context, batch)
        if code:
            raise SystemExit(f"llama_decode failed with {code}")

    def _most_probable(self, index: int) -> int:
        logits = self._api.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(logits, (self._num_vocab,)).argmax())


def _seconds_since_process_start() -> float:
    """Return the age of this process, to the clock tick (10 ms), from field 22 of its stat line."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks_per_second = 100
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / ticks_per_second


def _peak_bytes() -> int:
    """Return the peak resident memory of this process, unlike getrusage without its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _measure(session: _Session, arguments: argparse.Namespace) -> tuple[float, float]:
    """Return the rates of one prompt and of the decoding after it, in tokens per second."""
    session.clear()
    depth, length = arguments.depth, arguments.depth + arguments.prompt
    prompts = session.random_prompts(arguments.batch, length)
    if depth:
        session.append(prompts[:, :depth], 0)
    started = time.perf_counter()
    tokens = session.append(prompts[:, depth:], depth)
    prefilled = time.perf_counter()
    for step in range(arguments.generate):
        tokens = session.append(tokens[:, None], length + step)
    decoded = time.perf_counter()
    prefill = arguments.batch * arguments.prompt / (prefilled - started)
    return prefill, arguments.batch * arguments.generate / (decoded - prefilled)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure llama.cpp on one GGUF file.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--unified", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--kv-type", choices=_KV_TYPES, default="f16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--flash", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--extra-bufts", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def main() -> None:
    """Measure and print the result, until standard input ends."""
    arguments = _arguments()
    session = _Session(arguments)
    session.append(session.random_prompts(1, 1), 0)
    first_logits_seconds = _seconds_since_process_start()
    while True:
        rates = [_measure(session, arguments) for _ in range(arguments.repeat)]
        result = {
            "prefill_tokens_per_second": [prefill for prefill, _ in rates],
            "decode_tokens_per_second": [decode for _, decode in rates],
            "load_seconds": session.load_seconds,
            "first_logits_seconds": first_logits_seconds,
            "peak_rss_bytes": _peak_bytes(),
        }
        print(json.dumps(result), flush=True)
        if not sys.stdin.readline():
            break


if __name__ == "__main__":
    main()
