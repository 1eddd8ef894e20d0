"""Workers in tests: their processes, and answers that are compared."""

from __future__ import annotations

from pathlib import Path

import chaski

QUESTION = [{"role": "user", "content": "What is chaski?"}]


def same(answer: chaski.Answer, other: chaski.Answer) -> bool:
    return (answer.text, answer.token_ids, answer.logprobs) == (other.text, other.token_ids, other.logprobs)


def is_running(pid: int) -> bool:
    """Return whether there is such a process; one that ended and was not waited for counts as gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def is_stopped(pid: int) -> bool:
    """Return whether all threads of a process stand still, which SIGSTOP does not wait for."""
    states = (
        path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")
    )
    return all(state == "T" for state in states)
