"""Measures the encoding of one image of 896 x 896 on the shape of Gemma 3's SigLIP, beside the peak and
llama.cpp's libmtmd.

    python -m benchmarks.vision [--type Q8_0 F16] [--threads 2] [--llama-python other-venv/bin/python]

27 layers of 1152, 16 heads of 72, 4096 patches, 256 rows of 2560. Random weights: both engines read the same
file, made in a temporary folder, and encode in turns; of each the best time counts. Multiply-adds of the
matrices count at the machine's peak for their type, those of attention at that for float32, which its kernels
compute in. Both peaks are measured beside it. What differs between the rows of both engines is printed too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.make_projector import IMAGE, ROW, attention_products, write_projector, write_text
from benchmarks.roofline import Limits, measure, product_rate
from chaski.formats.gguf import open_gguf
from chaski.ml import CPUOptions, open_backend
from chaski.ml.graph import DType
from chaski.model.arch.gemma3.vision import Vision
from chaski.model.encoder import EncoderProgram
from chaski.model.weights import bind_weights

_WORKER = Path(__file__).parent / "mtmd_worker.py"
_OURS = "chaski"
_PEAKS = {"Q8_0": "int8", "F16": "fp32", "BF16": "bf16"}

Encode = Callable[[], float]
"""Encodes the image once -> seconds."""


def main() -> None:
    """Encode in turns with weights of each type, and print what was measured."""
    arguments = _arguments()
    for name in arguments.type:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            files = _Files(Path(folder))
            matrices = files.write(name)
            ours = _Ours(files, arguments.threads)
            engines: dict[str, Encode] = {_OURS: ours.encode}
            if arguments.llama_python:
                for flash in _settings(arguments.setting):
                    peer = _peer(arguments.llama_python, files, arguments.threads, flash)
                    engines[f"llama.cpp: {flash}"] = stack.enter_context(peer)
            times: dict[str, list[float]] = {engine: [] for engine in engines}
            for number in range(1, arguments.repeat + 1):
                for engine, encode in engines.items():
                    times[engine].append(encode())
                    print(f"{name}, round {number}: {times[engine][-1]:7.2f} s  {engine}", flush=True)
            limits = measure(arguments.threads)[-1]
            _report(name, matrices, limits, {engine: min(seconds) for engine, seconds in times.items()})
            for engine in [engine for engine in engines if engine != _OURS]:
                print(f"  rows of {engine} differ by {_difference(ours.rows, np.load(files.rows)):.1e}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--type", nargs="+", default=["Q8_0", "F16"], choices=_PEAKS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--llama-python", help="an interpreter with llama-cpp-python; without it, no peer")
    parser.add_argument("--setting", choices=["flash", "no flash"], help="of llama.cpp; both by default")
    return parser.parse_args()


def _settings(wanted: str | None) -> list[str]:
    return [wanted] if wanted else ["flash", "no flash"]


@dataclass(frozen=True, slots=True)
class _Files:
    folder: Path

    @property
    def projector(self) -> Path:
        return self.folder / "projector.gguf"

    @property
    def text(self) -> Path:
        return self.folder / "text.gguf"

    @property
    def pixels(self) -> Path:
        return self.folder / "pixels.npy"

    @property
    def rows(self) -> Path:
        return self.folder / "rows.npy"

    def write(self, type_name: str) -> int:
        """All but the rows -> multiply-adds of the encoder's matrices."""
        write_text(self.text)
        np.save(self.pixels, np.random.default_rng(1).integers(0, 256, (IMAGE, IMAGE, 3), np.uint8))
        return write_projector(self.projector, type_name)


class _Ours:
    """The encoder as the engine runs it. `rows` are those that it made last."""

    def __init__(self, files: _Files, threads: int) -> None:
        file = open_gguf(files.projector)
        vision: Any = Vision(file, ROW)
        backend = open_backend("cpu", CPUOptions(threads=threads))
        bind_weights(vision, file, backend, lambda share: None)
        self._program = EncoderProgram(vision, backend, DType.F16)
        self._image = vision.image(np.load(files.pixels).astype(np.float32) / 127.5 - 1)
        self.rows = np.zeros((0, ROW), np.float32)

    def encode(self) -> float:
        start = perf_counter()
        self.rows = self._program.encode(self._image)
        return perf_counter() - start


@contextmanager
def _peer(python: str, files: _Files, threads: int, setting: str) -> Iterator[Encode]:
    """llama.cpp in a process of its own, which waits while others encode."""
    paths = [str(path) for path in (files.projector, files.text, files.pixels)]
    options = ["--rows", str(files.rows), "--threads", str(threads), f"--{setting.replace(' ', '-')}"]
    process = subprocess.Popen(
        [python, str(_WORKER), *paths, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def answer() -> dict[str, float]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"llama.cpp ended with {process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def encode() -> float:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return answer()["seconds"]

    try:
        answer()
        yield encode
    finally:
        process.kill()
        process.wait()


def _report(name: str, matrices: int, limits: Limits, seconds: Mapping[str, float]) -> None:
    attention = attention_products()
    least = matrices / product_rate(limits, _PEAKS[name]) + attention / limits.fp32
    products = f"{matrices / 1e12:.2f} + {attention / 1e12:.2f} tera multiply-adds"
    print(f"{name}: {products} take {least:.2f} s at the peak")
    for engine, best in seconds.items():
        print(f"  {best:7.2f} s, {least / best:4.0%} of the peak: {engine}")
    peers = [best for engine, best in seconds.items() if engine != _OURS]
    if peers:
        print(f"  {min(peers) / seconds[_OURS]:.2f} times the best setting of llama.cpp")


def _difference(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """Root of the mean square, relative to that of ours."""
    return float(np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(ours**2)))


if __name__ == "__main__":
    main()
