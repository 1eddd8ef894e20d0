"""Predict the speed of a model that is split over several nodes: `python -m benchmarks.nodes`.

It measures the work of one node on this machine (`benchmarks/node_costs.py`), with layers in the shapes of
the 8B model. From that, `benchmarks/simulated/shards.py` simulates the rest, with the real pieces of the
models. `--memory` replaces the measured memory bandwidth by the given GB/s; with a faster memory, cores and
caches are faster by the same factor.

    python -m benchmarks.nodes --threads 1
    python -m benchmarks.nodes --threads 1 --memory 9.7 63
    python -m benchmarks.nodes --check     needs root: two nodes of one thread, and their prediction
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from benchmarks.make_models import write, write_hollow
from benchmarks.node_costs import PREFILL, TYPE, NodeCosts, node_costs, rates_on, sizes_of
from benchmarks.part_of_model import CutModel
from benchmarks.shapes import SHAPES
from benchmarks.shapes.llama import Llama
from benchmarks.shards import address_of, written_key
from benchmarks.simulated.shards import Batch, Link, Simulated, simulate, work_of
from chaski.cli.bench import Workload

_EIGHT = cast("Llama", SHAPES["llama-3.1-8b"])
MODELS: Mapping[str, Llama] = {
    "8B": _EIGHT,
    "70B": dataclasses.replace(_EIGHT, num_layers=80, hidden_size=8192, num_heads=64, ffn_size=28672),
}
LINKS = {"1 GbE, 0.2 ms": (2e-4, 125e6), "10 GbE, 0.05 ms": (5e-5, 1250e6)}
SPLITS = ("rows", "layers")
# Number of layers of the measured model.
LAYERS = 4
# Prompt tokens per batch with a split by layers, if `num_batch` is PREFILL.
PART = 128

Costs = Mapping[str, NodeCosts]
"""The costs of a node with a split by rows, and with a split by layers."""


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of the measured node")
    parser.add_argument("--repeat", type=int, default=20, help="tokens in each measurement")
    parser.add_argument("--memory", type=float, nargs="*", default=[], help="GB/s of assumed nodes")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--check", action="store_true", help="compare with two nodes in network namespaces")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.check:
            check(folder, arguments.repeat)
            return
        threads, repeat = arguments.threads, arguments.repeat
        path = folder / "layers.gguf"
        write(path, dataclasses.replace(_EIGHT, num_layers=LAYERS), TYPE, "some layers")
        measured = {split: node_costs(folder, path, threads, repeat, split) for split in SPLITS}
        rates = [measured["rows"].decode.bandwidth, *(each * 1e9 for each in arguments.memory)]
        for rate in rates:
            print(f"\nnodes that read {rate / 1e9:.1f} GB/s")
            assumed = {split: costs.with_memory(rate) for split, costs in measured.items()}
            for model in arguments.models:
                table(folder, model, assumed, arguments.nodes)


def table(folder: Path, name: str, costs: Costs, counts: Sequence[int]) -> None:
    """Print the speed of several numbers of nodes, and a token's time with part of the exchange free."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_hollow(path, MODELS[name], TYPE, name)
    alone = CutModel(path, "layers", 1)
    still = Link(0.0, 1e18)
    one = [simulated(alone, tokens, costs["layers"], still).seconds for tokens in (1, PREFILL)]
    print(
        f"{name}: on one node {one[0] * 1e3:.0f} ms a token, and {one[1]:.1f} s for {PREFILL} tokens\n\n"
        f"| nodes | split | link | ms a token | times | nothing read ahead | without latency | without bytes "
        f"| without messages | {PREFILL} tokens, s | times |\n|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for members in counts:
        for split in SPLITS:
            cut, measured = CutModel(path, split, members), costs[split]
            for title, (latency, bandwidth) in LINKS.items():
                link = Link(latency, bandwidth, measured.message, measured.byte)
                waiting = dataclasses.replace(measured, decode=replace(measured.decode, ahead=0))
                cases = [
                    (measured, link),
                    (waiting, link),
                    (measured, replace(link, latency=0.0)),
                    (measured, replace(link, bandwidth=1e18, byte=0.0)),
                    (measured, replace(link, message=0.0)),
                ]
                times = [simulated(cut, 1, *case).seconds for case in cases]
                # With a split by layers, batches of a prompt follow each other.
                part = PREFILL if split == "rows" else PART
                prompt = simulated(cut, PREFILL, measured, link, part).seconds
                shown = [f"{times[0] * 1e3:.0f}", f"{one[0] / times[0]:.2f}"]
                shown += [f"{each * 1e3:.0f}" for each in times[1:]]
                shown += [f"{prompt:.1f}", f"{one[1] / prompt:.2f}"]
                print(f"| {members} | {split} | {title} | {' | '.join(shown)} |", flush=True)


def check(folder: Path, repeat: int) -> None:
    """Compute a 1B model on two nodes of one thread over links with set bandwidths, and predict the result.

    Both nodes share the memory of this machine; with a split by rows they read it at the same time. Links
    have no latency. The cores of the nodes also do the work of the links.
    """
    from tests.cluster.namespaces import Namespaces

    path, key = folder / "1B.gguf", written_key(folder)
    write(path, SHAPES["llama-3.2-1b"], TYPE, "1B")
    measured = {split: node_costs(folder, path, 1, repeat, split, split == "rows") for split in SPLITS}
    workload = Workload(prompt=256, generate=64, depth=0, batch=1)
    print(
        "\n| split | link | ms a token | predicted | 256 tokens, s | predicted |\n|---|---|--:|--:|--:|--:|"
    )
    for rate, bandwidth in (("1gbit", 125e6), ("300mbit", 37.5e6)):
        with closing(Namespaces(2, rate)) as machines:
            command = ["shard", "--key", str(key), "--threads", "1", "--listen"]
            nodes = [machines.start(node, [*command, f"{machines.address(node)}:11500"]) for node in range(2)]
            addresses = [address_of(node) for node in nodes]
            for split in SPLITS:
                found = rates_on(addresses, key, split, path, workload)
                real = [1 / max(found.decode_tokens_per_second), 256 / max(found.prefill_tokens_per_second)]
                costs = measured[split]
                cut, link = CutModel(path, split, 2), Link(0.0, bandwidth, costs.message, costs.byte)
                part = PREFILL if split == "rows" else PART
                predicted = [simulated(cut, tokens, costs, link, part).seconds for tokens in (1, 256)]
                pairs = [
                    f"{each * unit:.{digits}f} | {other * unit:.{digits}f} ({other / each - 1:+.0%})"
                    for each, other, unit, digits in zip(real, predicted, (1e3, 1), (1, 2), strict=True)
                ]
                print(f"| {split} | {rate} | {' | '.join(pairs)} |", flush=True)


def simulated(
    cut: CutModel, tokens: int, measured: NodeCosts, link: Link, most_tokens: int = PREFILL
) -> Simulated:
    """Simulate tokens of one sequence in batches of `most_tokens`; the last token has an output."""
    node = measured.decode if tokens == 1 else measured.prefill
    counts = [min(most_tokens, tokens - begin) for begin in range(0, tokens, most_tokens)]
    batches = []
    for number, count in enumerate(counts, 1):
        sizes = {**sizes_of(count), "outputs": int(number == len(counts))}
        work = [
            [work_of(piece, cut.weights, sizes) if piece.graph.nodes else None for piece in some]
            for some in cut.pieces
        ]
        batches.append(Batch([node] * len(cut.pieces), work, sizes))
    return simulate(cut.pieces, batches, link, node.batch * len(counts))


if __name__ == "__main__":
    main()
