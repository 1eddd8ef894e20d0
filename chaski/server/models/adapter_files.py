"""`prepare_adapter`: convert and check an adapter's files in a separate process.

As a program, `python -m chaski.server.models.adapter_files`, this module reads the paths from standard input
and answers with JSON. A separate process is used because the files are untrusted, and because reading all
their values occupies a core for seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from chaski.env import child_environment
from chaski.errors import WorkerError
from chaski.model.file_dialects import open_model
from chaski.server.models.children import command, failure, raise_failure, reason
from chaski.store.adapter_files import check_fits, convert_folder

__all__ = ["prepare_adapter"]


def prepare_adapter(given: Path, made: Path, weights: Path, label: str) -> None:
    """Check that an adapter fits the model with these weights.

    given: a GGUF file, or a PEFT folder, which is converted to the file `made`
    label: the name of the adapter in error messages

    Raises the errors of `convert_folder` and `check_fits`, and WorkerError if the process dies.
    """
    paths = {"given": str(given), "made": str(made), "weights": str(weights), "label": label}
    done = subprocess.run(
        command("chaski.server.models.adapter_files"),
        input=json.dumps(paths).encode(),
        stdout=subprocess.PIPE,
        env=child_environment(),
        process_group=0,
    )
    if done.returncode:
        raise WorkerError(f"the process that checks adapter {label} ended {reason(done.returncode)}")
    raise_failure(json.loads(done.stdout))


def main() -> None:
    """Answer the request on standard input."""
    paths = json.load(sys.stdin)
    given, made, weights = (Path(paths[key]) for key in ("given", "made", "weights"))
    answer = {}
    try:
        if given.is_dir():
            convert_folder(given, made, weights, open_model)
        check_fits(made if given.is_dir() else given, weights, paths["label"], open_model)
    except Exception as error:
        answer = failure(error, f"checking adapter {paths['label']}")
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
