"""Measures embeddings on the shape of bert-base, beside torch, ONNX Runtime and llama.cpp.

    python -m benchmarks.embeddings --peer-python other-venv/bin/python [--llama-python PEER/bin/python]

12 layers of 768, 12 heads, 256 texts of 128 tokens. Random weights: all engines read the same, made in a
temporary folder. They embed in turns, all with all texts; of each the best time of the rounds counts. Ratios
are between engines whose weights have as many bits: float (F32, F16, BF16) and 8 bits. The peer has torch,
transformers, onnx and onnxruntime; the other one has llama-cpp-python. sentence-transformers computes by
torch and has no kernels of its own. How far the vectors are from torch's in F32 is printed too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

import chaski
from chaski.convert.convert import convert

__all__: list[str] = []

_WORKER = Path(__file__).parent / "embedding_worker.py"
_OURS = "chaski"
_FLOAT, _INT8 = "float", "8 bits"
_OF_PEERS = {
    "torch": ["F32", "BF16"],
    "onnx": ["F32", "F32-fused", "int8", "int8-fused"],
    "llama.cpp": ["F32", "F16", "Q8_0"],
}

Embed = Callable[[], float]
"""Embeds all texts once -> seconds."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """An engine with a type of weights, and how many texts it computes at once."""

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

    def rows(self, setting: _Setting) -> Path:
        return self.folder / f"{setting.name}.npy"


def main() -> None:
    """Embed in turns with every setting, and print what was measured."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = _Files(Path(folder))
        texts = _write(files, arguments)
        settings = list(_settings(arguments))
        embeds = {
            setting: stack.enter_context(_engine(setting, files, texts, arguments)) for setting in settings
        }
        times: dict[_Setting, list[float]] = {setting: [] for setting in settings}
        for number in range(1, arguments.repeat + 1):
            for setting, embed in embeds.items():
                times[setting].append(embed())
                print(f"round {number}: {times[setting][-1]:7.2f} s  {setting.name}", flush=True)
        _report(files, {setting: min(seconds) for setting, seconds in times.items()}, texts.size)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", required=True, help="an interpreter with torch and ONNX Runtime")
    parser.add_argument(
        "--llama-python", help="an interpreter with llama-cpp-python; without it, no llama.cpp"
    )
    parser.add_argument("--type", nargs="+", default=["F32", "F16", "Q8_0"], help="of our weights")
    parser.add_argument("--batch", nargs="+", type=int, default=[8, 32], help="texts at once, for each peer")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    return parser.parse_args()


def _write(files: _Files, arguments: argparse.Namespace) -> NDArray[np.int64]:
    """The checkpoint, the files made of it, and the texts, which are returned."""
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


def _settings(arguments: argparse.Namespace) -> Iterator[_Setting]:
    for type in arguments.type:
        yield _Setting(_OURS, type, arguments.texts)
    for engine in ("torch", "onnx"):
        for type in _OF_PEERS[engine]:
            for batch in arguments.batch:
                yield _Setting(engine, type, batch)
    if arguments.llama_python:
        for type in _OF_PEERS["llama.cpp"]:
            for batch in arguments.batch:
                for option in ("--flash", "--no-flash"):
                    yield _Setting("llama.cpp", type, batch, (option,))


@contextmanager
def _engine(
    setting: _Setting, files: _Files, texts: NDArray[np.int64], arguments: argparse.Namespace
) -> Iterator[Embed]:
    if setting.engine == _OURS:
        with chaski.load(
            files.model(setting.type), threads=arguments.threads, context=texts.shape[1]
        ) as model:
            ids = texts.tolist()

            def embed() -> float:
                started = perf_counter()
                rows = model.embed(ids)
                seconds = perf_counter() - started
                np.save(files.rows(setting), rows)
                return seconds

            yield embed
        return
    python = arguments.llama_python if setting.engine == "llama.cpp" else arguments.peer_python
    paths = [str(files.folder), "--texts", str(files.texts), "--rows", str(files.rows(setting))]
    sizes = ["--batch", str(setting.batch), "--threads", str(arguments.threads), "--type", setting.type]
    with _peer([python, str(_WORKER), setting.engine, *paths, *sizes, *setting.options]) as embed:
        yield embed


@contextmanager
def _peer(command: Sequence[str]) -> Iterator[Embed]:
    """An engine in a process of its own, which waits while others embed."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )

    def answer() -> dict[str, float]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(command)} ended with {process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def embed() -> float:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return answer()["seconds"]

    try:
        answer()
        yield embed
    finally:
        process.kill()
        process.wait()


def _report(files: _Files, seconds: dict[_Setting, float], num_tokens: int) -> None:
    exact = next(setting for setting in seconds if (setting.engine, setting.type) == ("torch", "F32"))
    wanted = np.load(files.rows(exact))
    for setting, best in sorted(seconds.items(), key=lambda each: each[1]):
        largest = np.abs(np.load(files.rows(setting)) - wanted).max()
        print(f"{num_tokens / best:9.0f} tok/s  {setting.name}; largest difference {largest:.1e}")
    for bits in (_FLOAT, _INT8):
        of_kind = {setting: best for setting, best in seconds.items() if setting.bits == bits}
        ours = [best for setting, best in of_kind.items() if setting.engine == _OURS]
        peers = {setting: best for setting, best in of_kind.items() if setting.engine != _OURS}
        if ours and peers:
            nearest = min(peers, key=lambda setting: peers[setting])
            print(f"{bits}: {peers[nearest] / min(ours):.2f} times the best peer, {nearest.name}")


if __name__ == "__main__":
    main()
