"""Processes import only the modules for their work, and no heavy modules for other work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

_SERVER = {"chaski.server", "starlette", "uvicorn", "asyncio"}
_OTHERS = {"http.client", "chaski.text.template.go", "PIL", "sentencepiece", "llguidance", "numpy.ma"}

# The work of a process as a program, and modules that it does not need.
PROCESSES = {
    "a worker, until it loads": (
        "import chaski.runner.channels.worker.__main__",
        {
            *_SERVER,
            *_OTHERS,
            "click",
            "chaski.cli",
            "chaski.runner.channels.worker.client",
            "jinja2",
            "tokenizers",
        },
    ),
    "chaski run": (
        "import sys; sys.argv = ['chaski', 'run', './chaski/models/guide.gguf', 'hi', '--num-predict', '1']\n"
        "from chaski.cli.main import chaski_command; chaski_command(standalone_mode=False)",
        {*_SERVER, *_OTHERS, "chaski.runner.channels.worker", "chaski.cli.line_editor"},
    ),
    "a server without traces": (
        "from pathlib import Path\n"
        "from chaski.server.app import create_app\n"
        "from chaski.server.settings import Settings\n"
        "from chaski.store.store import Store\n"
        "create_app(Settings(), Store(Path('none')), None)",
        {"opentelemetry", "google.protobuf", "requests", "chaski.server.telemetry.traces"},
    ),
    "loading a model in Python": (
        "import chaski; chaski.load('guide').close()",
        {*_SERVER, *_OTHERS, "click", "chaski.cli", "chaski.runner.channels.worker", "jinja2", "tokenizers"},
    ),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_imports(process: str) -> None:
    program, useless = PROCESSES[process]
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules, sep='\\n', file=sys.stderr)"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(useless.intersection(done.stderr.split())) == []
