"""Removes guards against faults one by one, in a copy of the package, and looks for the fault each time.

    python -m tests.guards [--seconds 60] [TEXT ...]

`guards.toml` lists guards: the commit that brought each of them, and the text without it. The simulation or a
fuzzing target then runs until it finds something. The output is the table of `docs/trust.md`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from tests.guards.listed import Guard, guards

_ROOT = Path(__file__).parents[2]
# Runs a module of the current folder. The finder of an installation for development would find another one.
_RUN = """
import resource, runpy, sys
seconds = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
sys.meta_path[:] = [each for each in sys.meta_path if not type(each).__module__.startswith("_editable")]
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("texts", nargs="*", help="parts of descriptions or commits; all by default")
    parser.add_argument("--seconds", type=int, default=60, help="of processor time for each guard")
    parser.add_argument("--seeds", type=int, default=0, help="the first seed of the simulation")
    parsed = parser.parse_args()
    texts = parsed.texts or [""]
    chosen = [each for each in guards() if any(text in f"{each.what} {each.commit}" for text in texts)]
    num_found = 0
    build = _ROOT / "build"  # on the disk of the files, so that they can be linked
    build.mkdir(exist_ok=True)
    for guard in chosen:
        with tempfile.TemporaryDirectory(prefix="guards-", dir=build) as folder:
            _copy_without(guard, Path(folder))
            found = _is_found(_command(guard, parsed.seconds, parsed.seeds), Path(folder))
        num_found += found
        answer = "yes" if found else "no"
        print(f"| {guard.what} | {guard.commit} | {guard.by} | {answer} |", flush=True)
    print(f"{num_found} of {len(chosen)} found")


def _copy_without(guard: Guard, folder: Path) -> None:
    """Link all files of the package and its tests into a folder, and write the one without the guard."""
    for name in ("chaski", "tests", "fuzz"):
        shutil.copytree(_ROOT / name, folder / name, copy_function=os.link)
    native = find_spec("chaski._native")
    assert native is not None
    assert native.origin is not None
    (folder / "chaski" / Path(native.origin).name).unlink(missing_ok=True)
    shutil.copy(native.origin, folder / "chaski")
    path = folder / guard.path
    text = path.read_text()
    path.unlink()
    path.write_text(guard.removed_from(text))


def _command(guard: Guard, seconds: int, first: int) -> list[str]:
    run = [sys.executable, "-c", _RUN, str(seconds)]
    if guard.by == "simulation":
        return [*run, "tests.simulation", "--seeds", f"{first}:1000000", "--steps", "8"]
    return [*run, "fuzz", guard.by, "--seconds", str(100 * seconds), "--seed", "1", "--child", "report"]


def _is_found(command: list[str], folder: Path) -> bool:
    """Run until there is a finding or the time is over. A process that fails is a finding too."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with (folder / "output").open("w") as output:
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        try:
            while child.poll() is None:
                if _has_finding(folder):
                    return True
                time.sleep(0.2)
        finally:
            child.kill()
            child.wait()
    is_over = child.returncode in (-signal.SIGKILL, -signal.SIGXCPU)
    return not is_over or _has_finding(folder)


def _has_finding(folder: Path) -> bool:
    """Return whether the simulation printed a failure, or a target kept an input."""
    kept = (path for path in folder.glob("build/fuzz/*") if path.is_file())
    return any(kept) or "python -m tests.simulation --seed" in (folder / "output").read_text()


if __name__ == "__main__":
    main()
