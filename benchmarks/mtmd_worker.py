"""Encodes an image by llama.cpp's libmtmd, each time that a line comes on standard input.

Runs in an interpreter that has llama-cpp-python. The first answer, when all is loaded, is an empty JSON
object; then each line is answered by `{"seconds": ...}`. The image is a file of pixels (height, width, 3) of
uint8; the rows that came out last are left in `--rows`, as float32.
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

_IMAGE_CHUNK = 1


class _Encoder:
    """A projector in front of a text model, which only has to be there."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._llama: Any = importlib.import_module("llama_cpp.llama_cpp")
        self._api: Any = importlib.import_module("llama_cpp.mtmd_cpp")
        self._silence = self._llama.llama_log_callback(lambda level, text, data: None)
        for log_set in (self._llama.llama_log_set, self._api.mtmd_log_set, self._api.mtmd_helper_log_set):
            log_set(self._silence, ctypes.c_void_p(0))
        self._llama.llama_backend_init()
        text = self._llama.llama_model_load_from_file(
            str(arguments.text).encode(), self._llama.llama_model_default_params()
        )
        if not text:
            raise SystemExit(f"llama.cpp cannot load {arguments.text}")
        self._row_size = self._llama.llama_model_n_embd(text)
        params = self._api.mtmd_context_params_default()
        params.use_gpu = params.warmup = params.print_timings = False
        params.n_threads = arguments.threads
        params.flash_attn_type = int(arguments.flash)
        self._context = self._api.mtmd_init_from_file(str(arguments.projector).encode(), text, params)
        if not self._context:
            raise SystemExit(f"llama.cpp cannot load {arguments.projector}")

    def chunk(self, pixels: NDArray[np.uint8]) -> Any:
        """The image as `encode` takes it, resized and normalized."""
        data = np.ascontiguousarray(pixels)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = self._api.mtmd_bitmap_init(data.shape[1], data.shape[0], pointer)
        marker = self._api.mtmd_default_marker()
        text = self._api.mtmd_input_text(text=marker, text_len=len(marker), add_special=True)
        text.parse_special = True
        chunks = self._api.mtmd_input_chunks_init()
        bitmaps = (self._api.mtmd_bitmap_p_ctypes * 1)(bitmap)
        code = self._api.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1)
        if code:
            raise SystemExit(f"mtmd_tokenize failed with {code}")
        every = [
            self._api.mtmd_input_chunks_get(chunks, index)
            for index in range(self._api.mtmd_input_chunks_size(chunks))
        ]
        return next(one for one in every if self._api.mtmd_input_chunk_get_type(one) == _IMAGE_CHUNK)

    def encode(self, chunk: Any) -> NDArray[np.float32]:
        """The rows of the image."""
        code = self._api.mtmd_encode_chunk(self._context, chunk)
        if code:
            raise SystemExit(f"mtmd_encode_chunk failed with {code}")
        shape = self._api.mtmd_input_chunk_get_n_tokens(chunk), self._row_size
        return np.ctypeslib.as_array(self._api.mtmd_get_output_embd(self._context), shape)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("projector", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("pixels", type=Path, help="a file of numpy.save")
    parser.add_argument("--rows", type=Path, required=True, help="where rows are left, by numpy.save")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flash", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def main() -> None:
    """Answer lines until there are no more."""
    arguments = _arguments()
    encoder = _Encoder(arguments)
    chunk = encoder.chunk(np.load(arguments.pixels))
    print("{}", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        rows = encoder.encode(chunk)
        seconds = time.perf_counter() - started
        np.save(arguments.rows, rows)
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
