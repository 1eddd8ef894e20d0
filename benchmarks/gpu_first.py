"""What the first minutes on a GPU answer, part by part; `tools/gpu_first_hour.sh` runs them.

    python -m benchmarks.gpu_first prepare     compile the kernels of all works for sm_90, without a GPU
    python -m benchmarks.gpu_first bits        compare logits and tokens with the processor's
    python -m benchmarks.gpu_first micro       time empty kernels and tensor instructions
    python -m benchmarks.gpu_first timeline    divide a prompt and a step into host, kernels and the rest
    python -m benchmarks.gpu_first variants    time a step with and without early launches, in turns

With `--device cuda-emulated` all parts but `prepare` run without a GPU, on a tiny model. Its times mean
nothing.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace

import chaski
from benchmarks.kernel_times import time_kernels
from benchmarks.make_models import SHAPES, make, write_hollow
from chaski.ml import open_backend
from chaski.ml.cuda.backend import CUDABackend
from chaski.ml.cuda.device import GPU, KernelLaunch, Program, pack
from chaski.ml.cuda.plan import CUDAPlan

__all__ = ["main"]

_MICRO = str(Path(__file__).with_name("gpu_micro"))
_PREPARED = ("llama-3.1-8b", "llama-3.2-1b")
_OPTIONS: Mapping[str, Any] = {"context": 1024, "parallel": 8, "prompt_cache": False}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part; return 1 if bits differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=_PARTS)
    parser.add_argument(
        "--device", default="cuda", metavar="BACKEND", help="cuda (default), or cuda-emulated"
    )
    parser.add_argument("--architecture", default="sm_90", help="that `prepare` compiles for (sm_90)")
    parsed = parser.parse_args(arguments)
    if parsed.part == "prepare":
        return prepare(parsed.architecture)
    if parsed.device != "cuda":
        import tests.cuda.emulated  # noqa: F401 (it registers the backend)
    return _PARTS[parsed.part](parsed.device)


def prepare(architecture: str) -> int:
    """Compile the kernels of the benchmark's works, several at a time, into the user's cache."""
    from benchmarks.gpu_estimate import compiled_model
    from benchmarks.paper_gpu import GPUS
    from chaski.ml.cuda.driver import cached_code
    from chaski.ml.machine import usable_processors

    gpu = next(each for each in GPUS.values() if each.architecture == architecture)
    programs: dict[Program, None] = {}
    with TemporaryDirectory() as folder:
        for shape in _PREPARED:
            path = Path(folder) / f"{shape}.gguf"
            write_hollow(path, SHAPES[shape], "Q4_K_M", shape)
            for sequences in (1, 64):
                with compiled_model(gpu, path, sequences, 2048) as program:
                    plan = program._plan
                    assert isinstance(plan, CUDAPlan)
                    programs |= dict.fromkeys(plan.programs())
    with ThreadPoolExecutor(usable_processors()) as pool:
        sizes = list(pool.map(lambda program: len(cached_code(program, architecture)), programs))
    print(f"{len(sizes)} programs for {architecture}, {sum(sizes) / 1e6:.1f} MB")
    return 0


def bits(device: str) -> int:
    """Compare the device with the processor."""
    path, lengths = _model(device)
    found = []
    for backend in ("cpu", device):
        with chaski.load(path, backend=backend, **_OPTIONS) as llm:
            answers = llm.generate_many(
                [_tokens(length) for length in (3, 5, lengths[-1])],
                num_predict=12,
                temperature=0,
                ignore_eos=True,
            )
            logits = [llm.logits(_tokens(length)).tobytes() for length in lengths]
            found.append((logits, [answer.token_ids for answer in answers]))
    (wanted, wanted_ids), (logits, ids) = found
    for length, one, other in zip(lengths, wanted, logits, strict=True):
        print(f"logits of {length} tokens: {'the same bits' if one == other else 'DIFFERENT'}")
    print(f"tokens of 3 sequences: {'the same' if wanted_ids == ids else 'DIFFERENT'}")
    return int(found[0] != found[1])


def micro(device: str) -> int:
    """Time kernels that do one thing."""
    rounds = 4096 if device == "cuda" else 2
    with _opened(device) as gpu:
        address, cores = gpu.allocate(4 << 20), gpu.device.cores
        argument = pack("P", [address])
        program = Program(_MICRO, (("CHASKI_ROUNDS", rounds),))
        for is_early in (False, True):
            launch = KernelLaunch(gpu.kernel(program, "nothing"), (cores, 1, 1), 128, 0, argument, is_early)
            each = _seconds(gpu, [launch] * 200) / 200
            print(f"an empty kernel, launched {'early' if is_early else 'late'}: {1e6 * each:.2f} us")
        blocks, threads = 2 * cores, 512
        launch = KernelLaunch(gpu.kernel(program, "tensor"), (blocks, 1, 1), threads, 0, argument)
        products = 4 * rounds * blocks * threads // 32 * 16 * 8 * 32
        rate = products / _seconds(gpu, [launch])
        print(f"int8 tensor instructions: {rate / 1e12:.1f} million million multiply-adds a second")
        gpu.free(address)
    print("wgmma, prefetches: skipped, no kernel has them")
    return 0


def timeline(device: str) -> int:
    """Divide a prompt and a step into the host's part, the kernels alone, and the rest."""
    path, lengths = _model(device)
    launch = CUDAPlan.launch
    with chaski.load(path, backend=device, **_OPTIONS) as llm:
        for name, length in (("prompt", lengths[-1]), ("step", 1)):
            seen: list[tuple[float, float]] = []

            def timed(plan: CUDAPlan, *rest: Any, seen: list[tuple[float, float]] = seen) -> Any:
                began = time.perf_counter()
                found = launch(plan, *rest)
                launched = time.perf_counter()
                found.wait()
                seen.append((launched - began, time.perf_counter() - began))
                return found

            whole = []
            with patch.object(CUDAPlan, "launch", timed):
                for seed in range(5):
                    began = time.perf_counter()
                    llm.logits(_tokens(length, seed))
                    whole.append(time.perf_counter() - began)
            alone = sum(seconds for _, seconds in time_kernels(_plan()))
            host, device_seconds = (1e3 * median(each) for each in zip(*seen, strict=True))
            print(
                f"{name} of {length} tokens: {1e3 * median(whole):.3f} ms in all; launching {host:.3f}, "
                f"until its results {device_seconds:.3f}, kernels alone {1e3 * alone:.3f}"
            )
    return 0


def variants(device: str) -> int:
    """Time all kernels of a step as they are, and without early launches, in turns."""
    path, _ = _model(device)
    with chaski.load(path, backend=device, **_OPTIONS) as llm:
        llm.logits(_tokens(1))
        plan = _plan()
        launches = plan._launches(plan._work_of(plan._newest_key))
        late = [replace(each, is_early=False) for each in launches]
        times: dict[str, list[float]] = {"early launches": [], "no early launches": []}
        for _ in range(5):
            for name, form in zip(times, (launches, late), strict=True):
                times[name].append(_seconds(plan._gpu, form))
        for name, seconds in times.items():
            print(f"a step with {name}: {1e6 * median(seconds):.0f} us")
    return 0


_PARTS: Mapping[str, Callable[[str], int]] = {
    "prepare": prepare,
    "bits": bits,
    "micro": micro,
    "timeline": timeline,
    "variants": variants,
}


def _model(device: str) -> tuple[Path, Sequence[int]]:
    """Return a model, and numbers of tokens that use each kind of product and of attention."""
    if device == "cuda":
        return make("llama-3.2-1b", "Q4_K_M"), (1, 9, 40, 512)
    return make("llama-tiny", "Q4_K_M"), (1, 9, 40)


def _tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 500, count)]


def _plan() -> CUDAPlan:
    """Return the largest plan of this process."""
    return max((each for each in gc.get_objects() if isinstance(each, CUDAPlan)), key=lambda each: each.bytes)


@contextmanager
def _opened(device: str) -> Iterator[GPU]:
    with closing(open_backend(device)) as backend:
        assert isinstance(backend, CUDABackend)
        yield backend._gpu


def _seconds(gpu: GPU, launches: Sequence[KernelLaunch]) -> float:
    """Return the seconds of launches as one recording, the best of three runs."""
    recorded, best = gpu.record(launches), float("inf")
    for _ in range(4):
        gpu.wait()
        began = time.perf_counter()
        gpu.run(recorded)
        gpu.wait()
        best = min(best, time.perf_counter() - began)
    gpu.forget(recorded)
    return best


if __name__ == "__main__":
    raise SystemExit(main())
