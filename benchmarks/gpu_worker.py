"""Measure one quantity for `benchmarks.gpu` in a separate process; print a line of JSON per figure."""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import astuple

import chaski
from benchmarks import make_experts
from benchmarks.limits import measure_limits
from benchmarks.make_models import SHAPES, make
from chaski.cli.bench import Workload, measure
from chaski.formats.gguf import open_gguf
from chaski.ml import open_backend

__all__ = ["measure_experts"]

_COPY = 1 << 30


def main() -> None:
    """Measure the quantity that the argument names."""
    task = json.loads(sys.argv[1])
    _MEASURES[task.pop("measure")](**task)


def _tell(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def _device(device: str, threads: Sequence[int]) -> None:
    """Describe the device and measure its limits."""
    if device == "cpu":
        for count in threads:
            limits = measure_limits(count)
            _tell(threads=count, copy=limits.read_bandwidth, products=limits.int8, isa=limits.isa)
    backend = open_backend(device)
    found = backend.devices()[0]
    backend.close()
    _tell(model=found.model, features=list(found.features), cores=found.cores)
    if device == "cuda":
        _tell(copy=_copy_rate())
        rates = _torch_rates()
        if rates is not None:
            _tell(**rates)


def _copy_rate() -> float:
    """Return the bytes per second that a copy inside the GPU reads and writes."""
    from cuda.bindings import driver

    from chaski.ml.cuda.driver import open_gpu

    gpu = open_gpu()
    source, target = gpu.allocate(_COPY), gpu.allocate(_COPY)
    best = 0.0
    for _ in range(5):
        gpu.wait()
        began = time.perf_counter()
        for _ in range(20):
            status, *_ = driver.cuMemcpyDtoDAsync(target, source, _COPY, gpu.stream)
            assert status == driver.CUresult.CUDA_SUCCESS, status
        gpu.wait()
        best = max(best, 20 * 2 * _COPY / (time.perf_counter() - began))
    gpu.free(source)
    gpu.free(target)
    gpu.close()
    return best


def _torch_rates() -> Mapping[str, Any] | None:
    """Return torch's rates of copies and of multiply-adds of random bf16 matrices; None without torch."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(_COPY, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return {
        "torch_version": torch.__version__,
        "torch_copy": 2 * _COPY / _torch_seconds(lambda: target.copy_(source)),
        "products": size**3 / _torch_seconds(lambda: a @ b),
    }


def _torch_seconds(run: Callable[[], Any], repeat: int = 20) -> float:
    """Return the seconds of a run, the best of three series."""
    import torch

    run()
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repeat):
            run()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) / repeat)
    return best


def _torch(shape: str, tokens: Sequence[int]) -> None:
    """Measure only the products of a model's matrices in torch's bf16, for several numbers of tokens."""
    try:
        import torch
    except ModuleNotFoundError:
        return
    matrices = [
        torch.randn(matrix.columns, matrix.rows, device="cuda", dtype=torch.bfloat16)
        for matrix in SHAPES[shape].matrices()
    ]
    for count in tokens:
        rows = {
            columns: torch.randn(count, columns, device="cuda", dtype=torch.bfloat16)
            for columns in {matrix.shape[0] for matrix in matrices}
        }

        def run(rows: Mapping[int, Any] = rows) -> None:
            for matrix in matrices:
                rows[matrix.shape[0]] @ matrix

        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        _tell(torch=shape, tokens=count, rate=count / _torch_seconds(graph.replay, 5))


def _model(
    device: str,
    shape: str,
    type: str,
    folder: str,
    threads: int | None,
    works: Mapping[str, Sequence[int]],
    repeat: int,
    kernels: int,
) -> None:
    """Load a model, measure each work several times, and then the slowest kernels of a step."""
    path = make(shape, type, Path(folder))
    workloads = {name: Workload(*numbers) for name, numbers in works.items()}
    context = max(each.context for each in workloads.values())
    parallel = max(each.batch for each in workloads.values())
    began = time.perf_counter()
    with chaski.load(path, backend=device, context=context, parallel=parallel, threads=threads) as llm:
        llm.wait_loaded()
        loaded = time.perf_counter() - began
        llm.logits([1, 2, 3])
        first = time.perf_counter() - began
        _tell(
            shape=shape, threads=threads, parallel=parallel, load_seconds=loaded, first_logits_seconds=first
        )
        for name, workload in workloads.items():
            if device != "cpu":
                measure(llm, workload, [0], 0.0)  # compiles and records kernels of these sizes
            for seed in range(1, 1 + repeat):
                result = measure(llm, workload, [seed], 0.0)
                _tell(
                    shape=shape,
                    threads=threads,
                    work=name,
                    numbers=astuple(workload),
                    prefill=result.prefill_tokens_per_second[0],
                    decode=result.decode_tokens_per_second[0],
                )
        if kernels and device != "cpu":
            _tell(shape=shape, work=name, kernels=list(_slowest(kernels)))


def _experts(device: str, shape: str, folder: str, numbers: Sequence[int], repeat: int) -> None:
    """Measure a mixture with its experts in several places: see `_places`."""
    path = Path(folder) / f"{shape}.gguf"
    if not path.exists():
        make_experts.make(shape, path)
    measure_experts(path, device, Workload(*numbers), repeat)


def measure_experts(path: Path, device: str, workload: Workload, repeat: int) -> None:
    """Measure a file of a mixture with its experts in several places."""
    for place, options in _places(path).items():
        with chaski.load(path, backend=device, context=workload.context, **options) as llm:
            measure(llm, workload, [0], 0.0)  # compiles kernels, and lets experts move
            for seed in range(1, 1 + repeat):
                result = measure(llm, workload, [seed], 0.0)
                layers = llm.memory().experts
                requests = sum(layer.requests for layer in layers)
                _tell(
                    experts=path.stem,
                    place=place,
                    prompt_rate=result.prefill_tokens_per_second[0],
                    answer_rate=result.decode_tokens_per_second[0],
                    on_gpu=sum(layer.gpu_hits for layer in layers) / requests if requests else None,
                )


def _places(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return options of loading by name; slots take as much of the GPU as the experts of whole layers."""
    with open_gguf(path) as file:
        layers = file.get(f"{file.architecture}.block_count", int)
        experts = file.get(f"{file.architecture}.expert_count", int)
    on_gpu = max(1, layers * 2 // 5)
    return {
        "processor": {"cpu_moe": True, "gpu_experts": 0},
        f"{on_gpu} of {layers} layers on the GPU": {"n_cpu_moe": layers - on_gpu, "gpu_experts": 0},
        f"{experts * on_gpu // layers} of {experts} experts on the GPU": {
            "cpu_moe": True,
            "gpu_experts": experts * on_gpu // layers,
        },
        "GPU": {"n_cpu_moe": 0, "gpu_experts": 0},
    }


def _slowest(count: int) -> Iterator[Mapping[str, Any]]:
    """Return the kernels of the newest step with the longest total times."""
    from benchmarks.kernel_times import time_kernels
    from chaski.ml.cuda.plan import CUDAPlan

    plans = [each for each in gc.get_objects() if isinstance(each, CUDAPlan)]
    plan = max(plans, key=lambda each: each.bytes)
    total: dict[str, list[float]] = defaultdict(list)
    for name, seconds in time_kernels(plan):
        total[name].append(seconds)
    for name, times in sorted(total.items(), key=lambda item: -sum(item[1]))[:count]:
        yield {"kernel": name, "times": len(times), "microseconds": 1e6 * statistics.fmean(times)}


_MEASURES: Mapping[str, Callable[..., None]] = {
    "device": _device,
    "model": _model,
    "experts": _experts,
    "torch": _torch,
}


if __name__ == "__main__":
    main()
