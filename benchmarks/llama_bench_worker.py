"""Measure ik_llama.cpp through its own `llama-bench`, as `chaski bench` measures chaski.

    python -m benchmarks.llama_bench_worker BUILD/bin/llama-bench MODEL --prompt 512 --generate 64 [--repack]

It prints one JSON object with the rates of `chaski bench --json`. ik_llama.cpp is a fork of llama.cpp with
its own CPU kernels. Its `-gp` generates after a prompt, and times only the generation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

__all__: list[str] = []


def main() -> None:
    """Run it once and print its results."""
    arguments = _arguments()
    done = subprocess.run(_command(arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        message = done.stderr.strip().rpartition("\n")[2]
        raise SystemExit(f"llama-bench ended with {done.returncode}: {message}")
    print(json.dumps(rates(json.loads(done.stdout))), flush=True)


def rates(tests: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the rates of its prompt and of its generation, in tokens per second."""
    prompt, generation = tests
    return {
        "prefill_tokens_per_second": prompt["samples_ts"],
        "decode_tokens_per_second": generation["samples_ts"],
    }


def _command(arguments: argparse.Namespace) -> list[str]:
    behind = arguments.depth + arguments.prompt
    if arguments.batch > 1 or arguments.depth:
        raise SystemExit("llama-bench measures one sequence, and prompts without a history")
    options = {
        "-m": arguments.model,
        "-p": arguments.prompt,
        "-n": 0,
        "-gp": f"{behind},{arguments.generate}",
        "-t": arguments.threads,
        "-r": arguments.repeat,
        "-rtr": int(arguments.repack),
        "-o": "json",
    }
    return [str(arguments.bench), *(str(text) for option in options.items() for text in option)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", type=Path)
    parser.add_argument("model", type=Path)
    for name in ("prompt", "generate", "depth", "batch", "threads", "repeat"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--repack", action="store_true", help="repack weights while loading")
    return parser.parse_args()


if __name__ == "__main__":
    main()
