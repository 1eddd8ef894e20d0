"""Logits of llama.cpp, by the C interface of the library that xllamacpp contains.

As a program, `python -m tests.llama_cpp_logits FILE`, it reads JSON from standard input and writes an answer:
{"answers": [[prompt, answer], ...]} for the most likely token at the place of each token of the answers;
{"scored": [[ids], ...], "first": i} for the surprisal of each token from i on; {"logits": [[ids], ...],
"file": path, "first": i, "kv_type": type} for the logits after each token from i on, of sequences of one
length, which it writes to the file.

The structures that the interface takes by value are longer here than there, which does no harm to the last
argument of a function. So only the first fields, which are set here, must have their places.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 1  # several threads wait for each other in a loop, also for one that has no core
_LONGER_THAN_ANY = 1024
_UNSET = 0xFFFFFFFF
_KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
"""Numbers of types, of keys and after it of values."""


class _Parameters(ctypes.Structure):
    """Parameters of a model or a context: numbers of tokens come first in those of a context."""

    _fields_ = (("numbers", ctypes.c_uint32 * (_LONGER_THAN_ANY // 4)),)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def library() -> ctypes.CDLL:
    """Load the library. Raises ImportError without xllamacpp."""
    import xllamacpp

    found = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))))
    for name in ("llama_model_default_params", "llama_context_default_params"):
        getattr(found, name).restype = _Parameters
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory"):
        getattr(found, name).restype = ctypes.c_void_p
    for name in ("llama_model_get_vocab", "llama_get_logits"):
        getattr(found, name).restype = ctypes.c_void_p
    found.llama_batch_init.restype = _Batch
    return found


class Logits:
    """A model in llama.cpp, with one sequence of up to `context` tokens.

    kv_type: the type of keys and values, one of `_KV_TYPES`
    """

    def __init__(self, path: Path, context: int, kv_type: str = "f16") -> None:
        self._library = library()
        call = self._library
        call.llama_backend_init()
        model = call.llama_model_load_from_file(str(path).encode(), call.llama_model_default_params())
        assert model, f"llama.cpp cannot load {path}"
        parameters = call.llama_context_default_params()
        parameters.numbers[0] = parameters.numbers[1] = parameters.numbers[2] = context
        numbers = list(parameters.numbers)
        (place,) = (at for at in range(8, 64) if numbers[at : at + 2] == [_KV_TYPES["f16"]] * 2)
        parameters.numbers[place] = parameters.numbers[place + 1] = _KV_TYPES[kv_type]
        if kv_type == "f32":
            # Four settings in sequence are -1: the last one lets llama.cpp decide about fused attention,
            # which rounds to float16.
            (place,) = (at for at in range(4, 64) if numbers[at : at + 4] == [_UNSET] * 4)
            parameters.numbers[place + 3] = 0
        self._context = ctypes.c_void_p(call.llama_init_from_model(ctypes.c_void_p(model), parameters))
        call.llama_set_n_threads(self._context, THREADS, THREADS)
        vocabulary = ctypes.c_void_p(call.llama_model_get_vocab(ctypes.c_void_p(model)))
        self._size = call.llama_vocab_n_tokens(vocabulary)
        self._batch = call.llama_batch_init(context, 0, 1)
        self._past = 0

    def begin(self) -> None:
        """Forget all tokens."""
        memory = ctypes.c_void_p(self._library.llama_get_memory(self._context))
        self._library.llama_memory_clear(memory, True)
        self._past = 0

    def after(self, ids: list[int], first: int) -> np.ndarray:
        """Continue with these tokens -> logits after those from `first` on (n, vocabulary)."""
        batch = self._batch
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place] = token, self._past + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = place >= first
        assert self._library.llama_decode(self._context, batch) == 0
        self._past += len(ids)
        pointer = ctypes.cast(self._library.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (len(ids) - first, self._size)).copy()


def surprisals(logits: np.ndarray, targets: list[int]) -> np.ndarray:
    """Return the negative log-probabilities of the tokens that followed (n,)."""
    rows = logits.astype(np.float64)
    highest = rows.max(axis=1)
    sums = np.log(np.exp(rows - highest[:, None]).sum(axis=1)) + highest
    return sums - rows[np.arange(len(rows)), targets]


def likeliest(model: Logits, prompt: list[int], answer: list[int]) -> list[int]:
    """Return the most likely token at the place of each token of an answer, after the tokens before it."""
    model.begin()
    found: list[int] = model.after([*prompt, *answer[:-1]], len(prompt) - 1).argmax(axis=1).tolist()
    return found


def greedy(model: Logits, prompt: list[int], count: int) -> list[tuple[int, float]]:
    """Return the most likely tokens after a prompt, with the gap to the second most likely one."""
    model.begin()
    found: list[tuple[int, float]] = []
    ids = prompt
    for _ in range(count):
        row = model.after(ids, 0)[-1]  # for the last token alone, CogVLM returns those of the first
        second, first = np.partition(row, -2)[-2:]
        ids = [int(row.argmax())]
        found.append((ids[0], float(first - second)))
    return found


@contextmanager
def _silent() -> Iterator[None]:
    """Keep llama.cpp's log out of the answer."""
    before = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)


def answer(path: Path, asked: dict[str, Any]) -> Any:
    if "answers" in asked:
        model = Logits(path, max(len(prompt) + len(answer) for prompt, answer in asked["answers"]))
        return [likeliest(model, prompt, answer) for prompt, answer in asked["answers"]]
    if "logits" in asked:
        model, rows = Logits(path, len(asked["logits"][0]), asked.get("kv_type", "f16")), []
        for ids in asked["logits"]:
            model.begin()
            rows.append(model.after(ids, asked.get("first", 0)))
        np.save(asked["file"], rows)
        return None
    model = Logits(path, max(map(len, asked["scored"])))
    found = []
    for ids in asked["scored"]:
        model.begin()
        logits = model.after(ids[:-1], asked["first"] - 1)
        scores = surprisals(logits, ids[asked["first"] :]).tolist()
        found.append([scores, logits.argmax(axis=1).tolist()] if asked.get("top") else scores)
    return found


if __name__ == "__main__":
    with _silent():
        found = answer(Path(sys.argv[1]), json.load(sys.stdin))
    json.dump(found, sys.stdout)
