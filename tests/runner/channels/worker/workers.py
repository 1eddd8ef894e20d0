"""Workers in tests: their processes, and comparable answers."""

from __future__ import annotations

from pathlib import Path

import chaski

QUESTION = [{"role": "user", "content": "What is chaski?"}]


def same(answer: chaski.Answer, other: chaski.Answer) -> bool:
    return (answer.text, answer.token_ids, answer.logprobs) == (other.text, other.token_ids, other.logprobs)


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie counts as ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def is_stopped(pid: int) -> bool:
    """Return whether all threads of a process have stopped, since SIGSTOP does not wait for this."""
    states = (
        path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")
    )
    return all(state == "T" for state in states)
