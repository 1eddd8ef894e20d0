"""Encode an image with llama.cpp's mtmd in a separate process, since llama.cpp's errors end it.

    python -m tests.mtmd.encode PROJECTOR TEXT PIXELS ROWS [LEAST MOST]

It uses mtmd's C interface in the module of xllamacpp. PIXELS is an array (height, width, 3) of uint8. ROWS
receives one array for each chunk of rows that mtmd makes from the image. LEAST and MOST bound their number,
for encoders that accept images of any size.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__: list[str] = []

_IMAGE_CHUNK = 1
_ROOM = 1024  # settings are passed by value; llama.cpp reads the part that it knows
_MARKER = b"<__media__>"

Pointer = ctypes.c_void_p


class _ModelSettings(ctypes.Structure):
    _fields_ = (("unread", ctypes.c_uint8 * _ROOM),)


class _Settings(ctypes.Structure):
    _fields_ = (
        ("use_gpu", ctypes.c_bool),
        ("device", Pointer),
        ("print_timings", ctypes.c_bool),
        ("num_threads", ctypes.c_int),
        ("image_marker", Pointer),
        ("media_marker", Pointer),
        ("flash_attention", ctypes.c_int),
        ("warmup", ctypes.c_bool),
        ("least_rows", ctypes.c_int),
        ("most_rows", ctypes.c_int),
        ("unread", ctypes.c_uint8 * _ROOM),
    )


class _Text(ctypes.Structure):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("length", ctypes.c_size_t),
        ("add_special", ctypes.c_bool),
        ("parse_special", ctypes.c_bool),
    )


def _library() -> ctypes.CDLL:
    module: Any = importlib.import_module("xllamacpp.xllamacpp")
    library = ctypes.CDLL(module.__file__)
    library.llama_model_default_params.restype = _ModelSettings
    library.mtmd_context_params_default.restype = _Settings
    for name in ("llama_model_load_from_file", "mtmd_init_from_file", "mtmd_bitmap_init"):
        getattr(library, name).restype = Pointer
    for name in ("mtmd_input_chunks_init", "mtmd_input_chunks_get"):
        getattr(library, name).restype = Pointer
    for name in ("mtmd_input_chunks_size", "mtmd_input_chunk_get_n_tokens"):
        getattr(library, name).restype = ctypes.c_size_t
    library.mtmd_get_output_embd.restype = ctypes.POINTER(ctypes.c_float)
    return library


def _checked(pointer: int | None, path: str) -> Pointer:
    if not pointer:
        raise SystemExit(f"llama.cpp cannot load {path}")
    return Pointer(pointer)


def rows(
    projector: str, text: str, pixels: NDArray[np.uint8], bounds: Sequence[int] = (-1, -1)
) -> list[NDArray[np.float32]]:
    """Return the rows of an image, chunk by chunk."""
    library = _library()
    library.llama_backend_init()
    loaded = library.llama_model_load_from_file(text.encode(), library.llama_model_default_params())
    model = _checked(loaded, text)
    settings = library.mtmd_context_params_default()
    settings.use_gpu = settings.print_timings = settings.warmup = False
    settings.least_rows, settings.most_rows = bounds
    settings.num_threads, settings.flash_attention = 1, 0  # not fused: keys and values in float32
    context = _checked(library.mtmd_init_from_file(projector.encode(), model, settings), projector)
    height, width, _ = pixels.shape
    bitmap = Pointer(library.mtmd_bitmap_init(width, height, pixels.ctypes.data_as(Pointer)))
    chunks = Pointer(library.mtmd_input_chunks_init())
    prompt = _Text(_MARKER, len(_MARKER), True, True)
    if code := library.mtmd_tokenize(context, chunks, ctypes.byref(prompt), ctypes.byref(bitmap), 1):
        raise SystemExit(f"mtmd_tokenize failed with {code}")
    found = []
    for index in range(library.mtmd_input_chunks_size(chunks)):
        chunk = Pointer(library.mtmd_input_chunks_get(chunks, ctypes.c_size_t(index)))
        if library.mtmd_input_chunk_get_type(chunk) == _IMAGE_CHUNK:
            if code := library.mtmd_encode_chunk(context, chunk):
                raise SystemExit(f"mtmd_encode_chunk failed with {code}")
            shape = library.mtmd_input_chunk_get_n_tokens(chunk), library.llama_model_n_embd_inp(model)
            found.append(np.ctypeslib.as_array(library.mtmd_get_output_embd(context), shape).copy())
    return found


def main(projector: str, text: str, pixels: str, target: str, *bounds: str) -> None:
    """Encode the image and write its rows."""
    limits = [int(bound) for bound in bounds] or (-1, -1)
    np.savez(target, *rows(projector, text, np.ascontiguousarray(np.load(pixels)), limits))


if __name__ == "__main__":
    main(*sys.argv[1:])
