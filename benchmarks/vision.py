"""Measure the encoding of one picture on the shapes of published encoders, next to llama.cpp's libmtmd.

    python -m benchmarks.vision [--encoder gemma-3 qwen3-vl] [--type Q8_0 F16] [--threads 2] [--json]
        [--llama-python other-venv/bin/python]

Both engines read the same file of random weights from a temporary folder, and encode the same picture in
turns. The best time of each counts, for libmtmd in its best setting. `benchmarks/encoders.py` defines the
sizes and the number of computed layers. Times are from normalized pixels to rows; the preparation from the
picture's file is shown separately. If other work runs on the machine, compare processor times. An encoder
that cannot be measured is reported at the end and does not stop the others.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture

from benchmarks.encoders import ENCODERS, Encoder
from benchmarks.engines import Engine, EngineError, Process
from benchmarks.make_projector import open_vision, write_projector, write_text
from benchmarks.picture_times import Measured, table
from benchmarks.times import OURS, Times
from chaski.errors import ChaskiError
from chaski.formats.gguf import open_gguf
from chaski.ml import CPUOptions, open_backend
from chaski.model.encoder import EncoderProgram
from chaski.model.weights import bind_weights

__all__ = ["Files", "measure", "not_much_slower"]

_WORKER = Path(__file__).parent / "mtmd_worker.py"
_TYPES = ("Q8_0", "F16", "BF16")
_SETTINGS = ("flash", "no flash")
# A setting whose best time is slower than the best setting's by this factor is not run again.
_NOT_RUN_AGAIN = 0.6

Encode = Callable[[], tuple[Times, Times, NDArray[np.float32]]]
"""Encodes the picture once; returns the times to prepare and encode it, and its rows."""


def main() -> None:
    """Measure every requested encoder and print the table."""
    arguments = _arguments()
    measured = []
    for name in arguments.encoder:
        for kind in arguments.type:
            with tempfile.TemporaryDirectory() as folder:
                files = Files(Path(folder), ENCODERS[name])
                measured.append(measure(name, kind, files, arguments))
    if arguments.json:
        print(json.dumps([asdict(one) for one in measured]))
    else:
        print(table(measured))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", nargs="+", default=list(ENCODERS), choices=ENCODERS)
    parser.add_argument("--type", nargs="+", default=["Q8_0", "F16"], choices=_TYPES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--llama-python", help="an interpreter with llama-cpp-python; without it, no peer")
    parser.add_argument("--setting", nargs="+", default=_SETTINGS, choices=_SETTINGS, help="of llama.cpp")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser.parse_args()


class Files:
    """The files that both engines read, in a separate folder."""

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self.encoder = encoder
        self.projector, self.text = folder / "projector.gguf", folder / "text.gguf"
        self.picture, self.rows = folder / "picture.png", folder / "rows.npy"

    def write(self, kind: str) -> None:
        """Write all files except the rows."""
        write_projector(self.projector, self.encoder, kind)
        write_text(self.text, self.encoder.row_size, self.encoder.deep)
        random = np.random.default_rng(1)
        colors = Picture.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8))
        edge = self.encoder.picture
        colors.resize((edge, edge), Picture.Resampling.BICUBIC).save(self.picture, compress_level=1)


def measure(name: str, kind: str, files: Files, arguments: argparse.Namespace) -> Measured:
    """Encode in turns with matrices of a type; report failures and continue with the others."""
    failed: dict[str, str] = {}
    runs: dict[str, list[tuple[Times, Times]]] = {}
    rows: dict[str, NDArray[np.float32]] = {}
    with ExitStack() as stack:
        engines = dict(_engines(kind, files, arguments, stack, failed))
        for number in range(1, arguments.repeat + 1):
            for engine in not_much_slower({name: runs.get(name, []) for name in engines}):
                try:
                    prepare, seconds, rows[engine] = engines[engine]()
                except (ChaskiError, EngineError) as error:
                    failed[engine] = str(error)
                    del engines[engine]
                    continue
                runs.setdefault(engine, []).append((prepare, seconds))
                told = f"{seconds.wall:7.2f} s, processor {seconds.cpu:7.2f} s  {engine}"
                print(f"{name} {kind}, round {number}: {told}", file=sys.stderr, flush=True)
    prepared, encoded = (
        {engine: Times.best([run[index] for run in found]) for engine, found in runs.items()}
        for index in range(2)
    )
    ours = rows.get(OURS, np.zeros((0, 1), np.float32))
    differences = {
        engine: _difference(ours, found, files.encoder.line_end)
        for engine, found in rows.items()
        if engine != OURS
    }
    e = files.encoder
    return Measured(name, kind, e.computed, e.num_layers, len(ours), prepared, encoded, differences, failed)


def not_much_slower(runs: Mapping[str, Sequence[tuple[Times, Times]]]) -> list[str]:
    """Return the engines without the peer's settings that were much slower than its best one.

    It compares processor times, which other work on the machine changes less.
    """
    peers = {name: min(encode.cpu for _, encode in found) for name, found in runs.items() if found}
    peers.pop(OURS, None)
    limit = min(peers.values(), default=0) / _NOT_RUN_AGAIN
    return [name for name in runs if peers.get(name, 0) <= limit]


def _engines(
    kind: str, files: Files, arguments: argparse.Namespace, stack: ExitStack, failed: dict[str, str]
) -> Iterator[tuple[str, Encode]]:
    """Write the file, and return all engines that can load it."""
    try:
        files.write(kind)
        yield OURS, _Ours(files, arguments.threads).encode
    except ChaskiError as error:
        failed[OURS] = str(error)
        return
    for setting in arguments.setting if arguments.llama_python else ():
        engine = f"libmtmd: {setting}"
        try:
            yield engine, stack.enter_context(_peer(engine, setting, files, arguments))
        except EngineError as error:
            failed[engine] = str(error)


class _Ours:
    """The encoder in our own engine."""

    def __init__(self, files: Files, threads: int) -> None:
        self._data = files.picture.read_bytes()
        file = open_gguf(files.projector)
        self._vision = open_vision(file, files.encoder.row_size)
        backend = open_backend("cpu", CPUOptions(threads=threads))
        bind_weights(self._vision, file, backend, lambda share: None)
        self._program = EncoderProgram(self._vision, backend, backend.default_kv_dtype)

    def encode(self) -> tuple[Times, Times, NDArray[np.float32]]:
        started = _times()
        image = self._vision.read_image(self._data)
        prepared = _times()
        rows = self._program.encode(image)
        prepare, encode = prepared - started, _times() - prepared
        return Times(*prepare.tolist()), Times(*encode.tolist()), rows


def _times() -> NDArray[np.float64]:
    return np.array([time.perf_counter(), time.process_time()])


@contextmanager
def _peer(engine: str, setting: str, files: Files, arguments: argparse.Namespace) -> Iterator[Encode]:
    """Start llama.cpp in a separate process, which waits while others encode."""
    command = [arguments.llama_python, str(_WORKER), str(files.projector), str(files.text)]
    command += [str(files.picture), "--rows", str(files.rows), "--threads", str(arguments.threads)]
    process = Process(Engine(engine, ()), [*command, f"--{setting.replace(' ', '-')}"])

    def encode() -> tuple[Times, Times, NDArray[np.float32]]:
        process.measure_again()
        found = process.answer()
        return Times(**found["prepare"]), Times(**found["encode"]), np.load(files.rows)

    try:
        process.answer()
        yield encode
    finally:
        process.close()


def _difference(ours: NDArray[np.float32], theirs: NDArray[np.float32], line_end: int) -> float | None:
    """Return the root mean square of the difference relative to ours; None for different shapes."""
    if line_end:
        theirs = theirs[np.arange(len(theirs)) % (line_end + 1) < line_end]
    if ours.shape != theirs.shape:
        return None
    return float(np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(ours**2)))


if __name__ == "__main__":
    main()
