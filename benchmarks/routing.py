"""Simulate the gain from routing by prefix: `python -m benchmarks.routing`.

    python -m benchmarks.routing                                four replicas, all policies
    python -m benchmarks.routing --replicas 1000 --sessions 100000 --rates 120 --systems 500 --turns 3

No model computes; `benchmarks/simulated/replicas.py` defines the simulated replica.
"""

from __future__ import annotations

import argparse

from benchmarks.simulated.replicas import POLICIES, Conversations, Machine, simulate

_COLUMNS = (
    *("sessions a second", "policy", "answers a second", "first token, s", "99 %"),
    *("cached", "busiest / mean", "choice, µs"),
)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.4, 0.6], help="sessions per second"
    )
    parser.add_argument("--systems", type=int, default=20, help="different first prompts")
    parser.add_argument("--system-tokens", type=int, default=1500)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    arguments = parser.parse_args()
    print(f"| {' | '.join(_COLUMNS)} |")
    print("|--:|---|--:|--:|--:|--:|--:|--:|")
    for rate in arguments.rates:
        trace = Conversations(
            arguments.sessions,
            rate,
            num_systems=arguments.systems,
            system_tokens=arguments.system_tokens,
            turns=arguments.turns,
        )
        for policy in arguments.policies:
            found = simulate(trace, Machine(), arguments.replicas, policy)
            print(
                f"| {rate:g} | {policy} | {found.answers_per_second:.2f} | {found.first_token:.1f} "
                f"| {found.first_token_p99:.1f} | {found.cached_share:.0%} | {found.hot_spot:.2f} "
                f"| {found.decision_seconds * 1e6:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
