"""Install the package in place, and its dependencies at the same time.

    python -m tools.install [--extra dev] [CMAKE_NAME=VALUE...]

Reports the elapsed time, the finished steps and the current file every second, or every five seconds without
a terminal. The log of the compiler is `build/core.log`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
_LOG = Path("build/core.log")
_STEP = re.compile(r"^ *\[(\d+)/(\d+)\]", re.MULTILINE)
_ISA = "-DCHASKI_ISA="


def steps_done(log: str) -> str:
    """Return the progress in a log of ninja: `"3 of 13"`, or `""` before the first step is done."""
    steps = _STEP.findall(log)
    return "{} of {}".format(*steps[-1]) if steps else ""


def compiled_file(command: list[str], root: Path) -> str | None:
    """Return the source, group of sources or headers of a compiler's command, with the instruction set.

    None if it compiles no file below `root`."""
    if command[-2:-1] != ["-c"]:
        return None
    source = Path(command[-1])
    if root not in source.parents:
        return None
    name, files = source.name, ""
    if name.startswith("cmake_pch"):
        name = "headers"
    elif source.parent.name == "Unity":
        name = name.removeprefix("unity_").removesuffix("_cxx.cxx").replace("_", " ")
        files = f" ({source.read_text().count('#include')} files)"
    isa = "".join(f" for {part.removeprefix(_ISA)}" for part in command if part.startswith(_ISA))
    return name + isa + files


def _compiled_now(root: Path) -> list[str]:
    """Return the files that compilers work on now; empty on systems other than Linux."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace").split("\0")[:-1]
            name = compiled_file(command, root)
        except OSError:  # the process or its source is gone
            continue
        if name:
            found.append(name)
    return sorted(set(found))


def _dependencies(extras: list[str]) -> list[str]:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    chosen: list[str] = [*project["dependencies"]]
    for extra in extras:
        chosen += project["optional-dependencies"][extra]
    return chosen


def _status(seconds: float, core: subprocess.Popen[bytes], packages: subprocess.Popen[bytes]) -> str:
    parts = []
    if core.poll() is None:
        done = steps_done(_LOG.read_text(errors="replace"))
        now = ", ".join(_compiled_now(Path.cwd()))
        parts.append(f"compiled {done}" if done else "preparing to compile")
        if now:
            parts.append(f"now {now}")
    if packages.poll() is None:
        parts.append("fetching packages")
    return f"{seconds:4.0f} s  " + "; ".join(parts)


def _report(core: subprocess.Popen[bytes], packages: subprocess.Popen[bytes]) -> None:
    """Write a line each second until both have ended; on a terminal, overwrite the previous line."""
    is_terminal = sys.stdout.isatty()
    begun = time.monotonic()
    second = 0
    while core.poll() is None or packages.poll() is None:
        line = _status(time.monotonic() - begun, core, packages)
        if is_terminal:
            width = shutil.get_terminal_size().columns
            print(f"\r\x1b[K{line[: width - 1]}", end="", flush=True)
        elif second % 5 == 0:
            print(line, flush=True)
        second += 1
        time.sleep(1)
    outcome = "failed" if core.returncode or packages.returncode else "compiled and installed"
    print(("\r\x1b[K" if is_terminal else "") + f"{time.monotonic() - begun:4.0f} s  {outcome}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.install")
    parser.add_argument("--extra", action="append", default=[], help="of pyproject.toml, installed too")
    parser.add_argument("definitions", nargs="*", metavar="NAME=VALUE", help="definitions of cmake")
    arguments = parser.parse_args()
    _LOG.parent.mkdir(exist_ok=True)
    settings = [f"--config-settings=cmake.define.{definition}" for definition in arguments.definitions]
    # pip compiles no modules: Python does that on the first import.
    with _LOG.open("wb") as log:
        core = subprocess.Popen(
            [*_PIP, "--verbose", "install", "--no-build-isolation", "--no-deps", "-e", ".", *settings],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        packages = subprocess.Popen(
            [*_PIP, "--quiet", "install", "--no-compile", *_dependencies(arguments.extra)]
        )
        _report(core, packages)
    if core.returncode:
        sys.stdout.write(_LOG.read_text(errors="replace"))
    sys.exit(core.returncode or packages.returncode)


if __name__ == "__main__":
    main()
