"""Encode a picture with llama.cpp's libmtmd for every line on standard input.

Runs in an interpreter that has llama-cpp-python. After loading, it prints an empty JSON object. Then it
answers each line with the seconds, by the clock (`wall`) and in processor time of all threads (`cpu`), to
`prepare` the picture from its file and to `encode` it. It writes the last rows to `--rows` as float32.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__: list[str] = []

_IMAGE_CHUNK = 1


class _Encoder:
    """A projector with a text model that must exist but is not computed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._llama: Any = importlib.import_module("llama_cpp.llama_cpp")
        self._api: Any = importlib.import_module("llama_cpp.mtmd_cpp")
        self._errors: list[str] = []
        self._log = self._llama.llama_log_callback(self._keep_error)
        for log_set in (self._llama.llama_log_set, self._api.mtmd_log_set, self._api.mtmd_helper_log_set):
            log_set(self._log, ctypes.c_void_p(0))
        self._llama.llama_backend_init()
        text = self._llama.llama_model_load_from_file(
            str(arguments.text).encode(), self._llama.llama_model_default_params()
        )
        if not text:
            raise SystemExit(f"llama.cpp cannot load {arguments.text}: {self._said()}")
        self._row_size = self._llama.llama_model_n_embd_inp(text)
        params = self._api.mtmd_context_params_default()
        params.use_gpu = params.warmup = params.print_timings = False
        params.n_threads = arguments.threads
        params.flash_attn_type = int(arguments.flash)
        self._context = self._api.mtmd_init_from_file(str(arguments.projector).encode(), text, params)
        if not self._context:
            raise SystemExit(f"llama.cpp cannot load {arguments.projector}: {self._said()}")

    def _keep_error(self, level: int, text: bytes, data: object) -> None:
        self._errors = [*self._errors[-5:], text.decode(errors="replace").strip()]

    def _said(self) -> str:
        return " ".join(filter(None, self._errors))

    def prepare(self, picture: Path) -> list[Any]:
        """Return the parts of the picture for `encode`, resized and normalized."""
        bitmap = self._api.mtmd_helper_bitmap_init_from_file(self._context, str(picture).encode(), False)
        if not bitmap:
            raise SystemExit(f"libmtmd cannot read {picture}: {self._said()}")
        marker = self._api.mtmd_default_marker()
        text = self._api.mtmd_input_text(text=marker, text_len=len(marker), add_special=True)
        text.parse_special = True
        chunks = self._api.mtmd_input_chunks_init()
        bitmaps = (self._api.mtmd_bitmap_p_ctypes * 1)(bitmap)
        code = self._api.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1)
        if code:
            raise SystemExit(f"mtmd_tokenize failed with {code}: {self._said()}")
        every = [
            self._api.mtmd_input_chunks_get(chunks, index)
            for index in range(self._api.mtmd_input_chunks_size(chunks))
        ]
        return [one for one in every if self._api.mtmd_input_chunk_get_type(one) == _IMAGE_CHUNK]

    def encode(self, parts: list[Any]) -> NDArray[np.float32]:
        """Return the rows of the picture."""
        return np.concatenate([self._encode(part) for part in parts])

    def _encode(self, part: Any) -> NDArray[np.float32]:
        code = self._api.mtmd_encode_chunk(self._context, part)
        if code:
            raise SystemExit(f"mtmd_encode_chunk failed with {code}: {self._said()}")
        shape = self._api.mtmd_input_chunk_get_n_tokens(part), self._row_size
        return np.ctypeslib.as_array(self._api.mtmd_get_output_embd(self._context), shape).copy()


def _times() -> NDArray[np.float64]:
    return np.array([time.perf_counter(), time.process_time()])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("projector", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--rows", type=Path, required=True, help="file for the rows, as numpy.save")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flash", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def main() -> None:
    """Answer lines until standard input ends."""
    arguments = _arguments()
    # libmtmd prints on standard output for some encoders.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    encoder = _Encoder(arguments)
    print("{}", file=answers, flush=True)
    for _ in sys.stdin:
        started = _times()
        parts = encoder.prepare(arguments.picture)
        prepared = _times()
        rows = encoder.encode(parts)
        prepare, encode = prepared - started, _times() - prepared
        np.save(arguments.rows, rows)
        print(json.dumps({"prepare": _named(prepare), "encode": _named(encode)}), file=answers, flush=True)


def _named(times: NDArray[np.float64]) -> dict[str, float]:
    return {"wall": times[0], "cpu": times[1]}


if __name__ == "__main__":
    main()
