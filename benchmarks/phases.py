"""Simulate whether separate replicas for prompts and answers pay off: `python -m benchmarks.phases`.

No model computes; `benchmarks/simulated/phases.py` defines the simulated replica. The figures come from
docs/performance.md for a 1B model in Q4_K_M with two threads and AVX-512: 319 prompt tokens per second (row
`type-q4_k_m`), 49.8 tokens of one answer, 186 of eight (`batch-8`).
"""

from __future__ import annotations

import argparse

from benchmarks.simulated.phases import Engine, Link, simulate_phases
from benchmarks.simulated.replicas import Conversations

_COLUMNS = (
    *("sessions a second", "replicas for prompts", "answers a second", "first token, s", "99 %"),
    *("gap, ms", "99 %", "MB moved an answer"),
)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.3, 0.5], help="sessions per second")
    parser.add_argument("--system-tokens", type=int, default=1500, help="tokens of first prompts")
    parser.add_argument("--question-tokens", type=int, default=300)
    parser.add_argument("--answer-tokens", type=int, default=120)
    parser.add_argument("--prefill", type=float, default=319.0, help="prompt tokens per second")
    parser.add_argument("--decode", type=float, default=49.8, help="tokens per second of one answer")
    parser.add_argument(
        "--decode-of-eight", type=float, default=186.0, help="tokens per second of eight answers"
    )
    parser.add_argument("--batch", type=int, default=512, help="maximum tokens of a step")
    parser.add_argument("--cell-bytes", type=int, default=32_768, help="bytes of a token's keys and values")
    parser.add_argument("--bandwidth", type=float, default=125e6, help="bytes per second of a link")
    arguments = parser.parse_args()
    engine = Engine(
        prefill=arguments.prefill,
        one=1 / arguments.decode,
        many=8 / arguments.decode_of_eight,
        batch=arguments.batch,
        cell_bytes=arguments.cell_bytes,
    )
    print(f"| {' | '.join(_COLUMNS)} |")
    print("|" + "--:|" * len(_COLUMNS))
    for rate in arguments.rates:
        trace = Conversations(
            arguments.sessions,
            rate,
            system_tokens=arguments.system_tokens,
            question_tokens=arguments.question_tokens,
            answer_tokens=arguments.answer_tokens,
        )
        for number in range(arguments.replicas):
            link = Link(bandwidth=arguments.bandwidth)
            found = simulate_phases(trace, engine, arguments.replicas, number, link)
            print(
                f"| {rate:g} | {number or 'all'} | {found.answers_per_second:.2f} | {found.first_token:.2f} "
                f"| {found.first_token_p99:.2f} | {found.gap * 1e3:.0f} | {found.gap_p99 * 1e3:.0f} "
                f"| {found.moved_bytes / 1e6:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
