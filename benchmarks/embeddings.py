"""Measure embeddings on the shape of bert-base, next to torch, ONNX Runtime and llama.cpp.

    python -m benchmarks.embeddings --peer-python other-venv/bin/python [--llama-python PEER/bin/python]

The model has 12 layers of 768 and 12 heads, and the input is 256 texts of 128 tokens. All engines read the
same random weights from a temporary folder. They embed all texts in turns, and the best time of each counts.
Ratios compare engines whose weights have the same number of bits: float (F32, F16, BF16) or 8 bits. If other
work runs on the machine, compare processor times. The peer interpreter has torch, transformers, onnx and
onnxruntime; the other one has llama-cpp-python. sentence-transformers computes with torch and has no own
kernels. The table also shows the distance of the vectors from torch's F32 vectors. An engine that fails is
reported and does not stop the others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from numpy.typing import NDArray

import chaski
from benchmarks.engines import Engine, EngineError, Process
from benchmarks.times import OURS, Times
from chaski.convert.convert import convert

__all__ = ["Setting", "nearest"]

_WORKER = Path(__file__).parent / "embedding_worker.py"
_FLOAT, _INT8 = "float", "8 bits"
_OF_PEERS = {
    "torch": ["F32", "BF16"],
    "onnx": ["F32", "F32-fused", "int8", "int8-fused"],
    "llama.cpp": ["F32", "F16", "Q8_0"],
}

Embed = Callable[[], Times]
"""Embeds all texts once."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine with a type of weights and a number of texts per batch."""

    engine: str
    type: str
    batch: int
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        extra = "".join(f", {option.lstrip('-').replace('-', ' ')}" for option in self.options)
        return f"{self.engine} {self.type}, {self.batch} texts at once{extra}"

    @property
    def bits(self) -> str:
        return _INT8 if "8" in self.type else _FLOAT


@dataclass(frozen=True, slots=True)
class _Files:
    folder: Path

    @property
    def texts(self) -> Path:
        return self.folder / "texts.npy"

    def model(self, type: str) -> Path:
        return self.folder / f"{type}.gguf"

    def rows(self, setting: Setting) -> Path:
        return self.folder / f"{setting.name}.npy"


def main() -> None:
    """Embed in turns with every setting, and print the results."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = _Files(Path(folder))
        texts = _write(files, arguments)
        embeds = {
            setting: stack.enter_context(_engine(setting, files, texts, arguments))
            for setting in _settings(arguments)
        }
        times: dict[Setting, list[Times]] = {}
        for number in range(1, arguments.repeat + 1):
            for setting, embed in list(embeds.items()):
                try:
                    found = embed()
                except EngineError as error:
                    print(f"left out: {error}", file=sys.stderr)
                    del embeds[setting]
                    continue
                times.setdefault(setting, []).append(found)
                told = f"{found.wall:7.2f} s, processor {found.cpu:7.2f} s  {setting.name}"
                print(f"round {number}: {told}", flush=True)
        _report(files, {setting: Times.best(several) for setting, several in times.items()}, texts.size)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", required=True, help="an interpreter with torch and ONNX Runtime")
    parser.add_argument(
        "--llama-python", help="an interpreter with llama-cpp-python; without it, no llama.cpp"
    )
    parser.add_argument("--type", nargs="+", default=["F32", "F16", "Q8_0"], help="types of our weights")
    parser.add_argument("--batch", nargs="+", type=int, default=[8, 32], help="texts at once, for each peer")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    return parser.parse_args()


def _write(files: _Files, arguments: argparse.Namespace) -> NDArray[np.int64]:
    """Write the checkpoint, the files made from it, and the texts; return the texts."""
    shape = ["--layers", str(arguments.layers), "--threads", str(arguments.threads)]
    command = [arguments.peer_python, str(_WORKER), "make", str(files.folder), *shape]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise SystemExit(f"the checkpoint was not made:\n{made.stderr[-2000:]}")
    for type in {*arguments.type, *(_OF_PEERS["llama.cpp"] if arguments.llama_python else ())}:
        convert(files.folder, files.model(type), type)
    texts = np.random.default_rng(0).integers(4, 30000, (arguments.texts, arguments.tokens))
    texts[:, 0], texts[:, -1] = 2, 3
    np.save(files.texts, texts)
    return texts


def _settings(arguments: argparse.Namespace) -> Iterator[Setting]:
    for type in arguments.type:
        yield Setting(OURS, type, arguments.texts)
    for engine in ("torch", "onnx"):
        for type in _OF_PEERS[engine]:
            for batch in arguments.batch:
                yield Setting(engine, type, batch)
    if arguments.llama_python:
        for type in _OF_PEERS["llama.cpp"]:
            for batch in arguments.batch:
                for option in ("--flash", "--no-flash"):
                    yield Setting("llama.cpp", type, batch, (option,))


@contextmanager
def _engine(
    setting: Setting, files: _Files, texts: NDArray[np.int64], arguments: argparse.Namespace
) -> Iterator[Embed]:
    if setting.engine == OURS:
        with chaski.load(
            files.model(setting.type), threads=arguments.threads, context=texts.shape[1]
        ) as model:
            ids = texts.tolist()

            def embed() -> Times:
                started = perf_counter(), process_time()
                rows = model.embed(ids)
                found = Times(perf_counter() - started[0], process_time() - started[1])
                np.save(files.rows(setting), rows)
                return found

            yield embed
        return
    python = arguments.llama_python if setting.engine == "llama.cpp" else arguments.peer_python
    paths = [str(files.folder), "--texts", str(files.texts), "--rows", str(files.rows(setting))]
    sizes = ["--batch", str(setting.batch), "--threads", str(arguments.threads), "--type", setting.type]
    command = [python, str(_WORKER), setting.engine, *paths, *sizes, *setting.options]
    with _peer(setting.name, command) as embed:
        yield embed


@contextmanager
def _peer(name: str, command: Sequence[str]) -> Iterator[Embed]:
    """Start an engine in a separate process, which waits while others embed."""
    process = Process(Engine(name, ()), command)
    is_loaded = False

    def embed() -> Times:
        nonlocal is_loaded
        if not is_loaded:
            process.answer()
            is_loaded = True
        process.measure_again()
        return Times(**process.answer())

    try:
        yield embed
    finally:
        process.close()


def _report(files: _Files, times: Mapping[Setting, Times], num_tokens: int) -> None:
    exact = next((one for one in times if (one.engine, one.type) == ("torch", "F32")), None)
    wanted = np.load(files.rows(exact)) if exact else None
    for setting, best in sorted(times.items(), key=lambda each: each[1].wall):
        rates = f"{num_tokens / best.wall:9.0f} tok/s, processor {num_tokens / best.cpu:9.0f}  {setting.name}"
        if wanted is not None:
            rates += f"; largest difference {np.abs(np.load(files.rows(setting)) - wanted).max():.1e}"
        print(rates)
    for bits in (_FLOAT, _INT8):
        for what, words in (("wall", "times"), ("cpu", "times in processor time")):
            found = nearest(times, bits, what)
            if found is not None:
                print(f"{bits}: {found[0]:.2f} {words} the best peer, {found[1].name}")


def nearest(times: Mapping[Setting, Times], bits: str, what: str) -> tuple[float, Setting] | None:
    """Return the best peer with the same number of weight bits, and the ratio of its best time to ours.

    `what` is `wall` or `cpu`.
    """
    of_kind = {setting: float(getattr(best, what)) for setting, best in times.items() if setting.bits == bits}
    ours = [best for setting, best in of_kind.items() if setting.engine == OURS]
    peers = {setting: best for setting, best in of_kind.items() if setting.engine != OURS}
    if not ours or not peers:
        return None
    found = min(peers, key=lambda setting: peers[setting])
    return peers[found] / min(ours), found


if __name__ == "__main__":
    main()
