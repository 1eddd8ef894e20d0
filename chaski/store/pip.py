"""pip: it knows the user's package indexes, mirrors and credentials, and finds or fetches a wheel there."""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from chaski.errors import RegistryError

__all__ = ["Pip"]

_WAIT_SECONDS = 0.1
_SEARCH_SECONDS = 60.0
_RETRIES = ("--retries", "1")  # without a network, pip's own five take ten seconds
_LOG_BYTES = 8 << 20
_LAST_CHARACTERS = 300  # of pip's messages without an error


class Pip:
    """The pip of this environment, or else the first one on the path."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    @classmethod
    def found(cls) -> Pip | None:
        """Return pip, or None if there is none, as in environments made by uv."""
        if importlib.util.find_spec("pip") is not None:
            return cls([sys.executable, "-P", "-m", "pip"])
        path = shutil.which("pip") or shutil.which("pip3")
        return None if path is None else cls([path])

    def address(self, package: str, wheel: str) -> str | None:
        """Return the address of a wheel on the user's indexes, or None if pip finds none.

        Only the log of pip has addresses.
        """
        with TemporaryDirectory(prefix="chaski-") as folder:
            log = Path(folder) / "log"
            arguments = ("index", "versions", package, *_RETRIES, "--log", str(log))
            try:
                subprocess.run(
                    [*self._command, *arguments],
                    env=_environment(),
                    cwd=folder,
                    capture_output=True,
                    timeout=_SEARCH_SECONDS,
                    check=False,
                )
                with log.open(errors="replace") as file:
                    text = file.read(_LOG_BYTES)
            except (OSError, subprocess.SubprocessError):
                return None
        match = re.search(rf"Found link (\S+/{re.escape(wheel)})(?=[#\s])", text)
        return None if match is None else match[1]

    def fetch(self, requirement: str, folder: Path) -> Generator[int, None, None]:
        """Download the wheel of `package==version` into `folder`; yield the number of bytes in it.

        Closing the generator ends pip. Raises RegistryError with pip's message.
        """
        options = (
            "--no-deps",
            "--only-binary",
            ":all:",
            "--progress-bar",
            "off",
            "--no-cache-dir",
            *_RETRIES,
        )
        messages = folder / "messages"
        with messages.open("w+") as output:
            process = subprocess.Popen(
                [*self._command, "download", requirement, *options, "--dest", str(folder)],
                env=_environment(TMPDIR=str(folder)),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                while (status := _status(process)) is None:
                    yield _size(folder)
            finally:
                process.kill()
                process.wait()
        if status:
            said = _error(messages.read_text(errors="replace"))
            raise RegistryError(f"pip cannot download {requirement}: {said}")


def _error(text: str) -> str:
    """Return the first error among pip's messages, or their end."""
    errors = re.findall(r"^ERROR: (.*)", text, re.MULTILINE)
    return errors[0] if errors else " ".join(text.split())[-_LAST_CHARACTERS:]


def _environment(**values: str) -> dict[str, str]:
    """Return the environment for pip. Downloading into a folder needs no virtual environment."""
    fixed = {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    return {**os.environ, **fixed, **values}


def _status(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _size(folder: Path) -> int:
    """Return the bytes of all wheels below a folder. Files and folders that pip moves are ignored."""
    sizes = 0
    for place, _, names in os.walk(folder):  # which passes over folders that are gone
        for name in fnmatch.filter(names, "*.whl"):
            with suppress(FileNotFoundError):
                sizes += os.stat(os.path.join(place, name)).st_size
    return sizes
