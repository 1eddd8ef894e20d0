"""How fast models are on an NVIDIA GPU, beside what its memory and its tensor cores give.

    python -m benchmarks.gpu                           Llama 3.2 1B and 3.1 8B, random weights, Q4_K_M
    python -m benchmarks.gpu --only copy llama-3.2-1b  some of it
    python -m benchmarks.gpu --json FILE               the figures as JSON, too

It needs the extra `cuda`, and about a minute a model. Weights that a token reads, times tokens a second, are
compared with a copy inside of the device, of which bytes read and written both count. Where torch is
installed, a product of bf16 matrices is measured as well. At the end come the kernels of a step, each of them
alone, many times in a row: weights that fit the device's cache are faster so than in a model.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import chaski
from benchmarks.make_models import SHAPES, make, num_products, weight_bytes
from chaski.cli.bench import Workload, measure

_WORKLOADS = {
    "prefill 512": Workload(512, 64, 0, 1),
    "prefill 2048": Workload(2048, 64, 0, 1),
    "depth 8192": Workload(128, 64, 8192, 1),
    "8 sequences": Workload(128, 64, 0, 8),
    "64 sequences": Workload(128, 64, 0, 64),
}
_COPY = 1 << 30


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["copy", "llama-3.2-1b", "llama-3.1-8b"])
    parser.add_argument("--type", default="Q4_K_M")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kernels", type=int, default=5, metavar="N", help="the slowest of a step")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    if "copy" in arguments.only:
        found["device"] = _device()
        print(json.dumps(found["device"], indent=2), flush=True)
    copied = found.get("device", {}).get("copy_bytes_per_second")
    print("\n| model | work | prefill, tok/s | decode, tok/s | of a copy |\n|---|---|--:|--:|--:|")
    for name in arguments.only:
        if name in SHAPES:
            found[name] = _model(name, arguments, copied)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def _device() -> dict[str, Any]:
    """What the GPU is, and what it gives."""
    from cuda.bindings import driver

    from chaski.ml.cuda.driver import open_gpu

    gpu = open_gpu()
    device = gpu.device
    source, target = gpu.allocate(_COPY), gpu.allocate(_COPY)
    best = 0.0
    for _ in range(5):
        gpu.wait()
        began = time.perf_counter()
        for _ in range(20):
            driver.cuMemcpyDtoDAsync(target, source, _COPY, gpu.stream)
        gpu.wait()
        best = max(best, 20 * 2 * _COPY / (time.perf_counter() - began))
    gpu.free(source)
    gpu.free(target)
    found = {
        "model": device.model,
        "features": device.features,
        "multiprocessors": device.cores,
        "copy_bytes_per_second": best,
    }
    rate = _torch_rate()
    return found if rate is None else found | {"torch_bf16_flops": rate}


def _torch_rate() -> float | None:
    """Operations a second of a product of random bf16 matrices; None without torch."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        a @ b
    torch.cuda.synchronize()
    rate = 10 * 2 * size**3 / (time.perf_counter() - began)
    del a, b
    torch.cuda.empty_cache()
    return rate


def _model(name: str, arguments: argparse.Namespace, copied: float | None) -> dict[str, Any]:
    """Rows of the table, and the slowest kernels."""
    path = make(name, arguments.type)
    bytes_read = weight_bytes(SHAPES[name], arguments.type)
    found: dict[str, Any] = {"bytes": bytes_read, "products": num_products(SHAPES[name])[0]}
    for parallel in (1, 64):
        workloads = {work: each for work, each in _WORKLOADS.items() if (each.batch == 1) == (parallel == 1)}
        context = max(each.context for each in workloads.values())
        began = time.perf_counter()
        with chaski.load(path, backend="cuda", context=context, parallel=parallel) as llm:
            loaded = time.perf_counter() - began
            llm.logits([1, 2, 3])
            first = time.perf_counter() - began
            for work, workload in workloads.items():
                measure(llm, workload, [0], 0.0)  # kernels of these sizes are compiled and recorded
                result = measure(llm, workload, range(1, 1 + arguments.repeat), 0.0)
                prefill = statistics.median(result.prefill_tokens_per_second)
                decode = statistics.median(result.decode_tokens_per_second)
                found[work] = {"prefill": prefill, "decode": decode}
                is_alone = workload.batch == 1 and workload.depth == 0
                share = f"{bytes_read * decode / copied:.0%}" if copied and is_alone else ""
                print(f"| {name} | {work} | {prefill:.0f} | {decode:.0f} | {share} |", flush=True)
            if parallel == 1:
                found |= {"load_seconds": loaded, "first_logits_seconds": first}
                found["kernels"] = list(_slowest(arguments.kernels))
    print(
        f"| {name} | load {found['load_seconds']:.2f} s, logits {found['first_logits_seconds']:.2f} s | | | |"
    )
    for each in found["kernels"]:
        print(f"| {name} | {each['kernel']} | | {each['times']} times {each['microseconds']:.1f} µs | |")
    return found


def _slowest(count: int) -> Iterator[dict[str, Any]]:
    """The kernels of a decode step that take the longest in all."""
    from chaski.ml.cuda.plan import CUDAPlan

    plans = [each for each in gc.get_objects() if isinstance(each, CUDAPlan)]
    plan = max(plans, key=lambda each: each.bytes)
    total: dict[str, list[float]] = defaultdict(list)
    for name, seconds in plan.time_kernels():
        total[name].append(seconds)
    for name, times in sorted(total.items(), key=lambda item: -sum(item[1]))[:count]:
        yield {"kernel": name, "times": len(times), "microseconds": 1e6 * float(np.mean(times))}


if __name__ == "__main__":
    main()
