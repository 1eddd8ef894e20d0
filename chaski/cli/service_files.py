"""Service files for `chaski serve`: a systemd unit and a launchd property list."""

from __future__ import annotations

import plistlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["HOME", "LABEL", "MARK", "USER", "launchd_agent", "systemd_unit"]

USER = "chaski"
"""The user that runs the machine's service."""
HOME = Path("/var/lib/chaski")
"""The home of that user, which contains the models."""
LABEL = "org.chaski.serve"
"""The name of the service for launchd."""
MARK = "Written by `chaski service install`"
"""Marks every service file that chaski writes. Files without it are not changed."""

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_OF_THE_MACHINE = {
    "HOME": str(HOME),
    "OLLAMA_MODELS": str(HOME / "models"),
    "OLLAMA_HOST": "127.0.0.1:11434",
}


def systemd_unit(command: Sequence[str], environment: Mapping[str, str], system: bool) -> str:
    """Return the text of a unit that runs a command with an environment.

    The machine's unit (`system`) runs as a dedicated user that can write only to its home. A user's unit runs
    with the rights of that user.
    """
    after = "After=network-online.target\nWants=network-online.target\n" if system else ""
    user = f"User={USER}\nGroup={USER}\n" if system else ""
    variables = {**(_OF_THE_MACHINE if system else {}), **environment}
    settings = "".join(f"Environment={_quoted(f'{name}={text}')}\n" for name, text in variables.items())
    start = " ".join(_quoted(word).replace("$", "$$") for word in command)
    walls = ""
    if system:
        walls = f"PrivateTmp=yes\nProtectSystem=strict\nProtectHome=yes\nReadWritePaths={HOME}\n"
    return (
        f"# {MARK}, which writes over it. `systemctl edit` keeps changes.\n"
        f"[Unit]\nDescription=chaski, a server of language models\n{after}\n"
        f"[Service]\n{user}{settings}EnvironmentFile=-%E/chaski.env\nExecStart={start}\n"
        f"Restart=on-failure\nRestartSec=3\nNoNewPrivileges=yes\n{walls}\n"
        f"[Install]\nWantedBy={'multi-user' if system else 'default'}.target\n"
    )


def launchd_agent(command: Sequence[str], environment: Mapping[str, str], log: Path) -> str:
    """Return the property list of a launchd agent that writes to a log file."""
    agent = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "EnvironmentVariables": dict(environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
    }
    head, end, rest = plistlib.dumps(agent, sort_keys=False).decode().partition("<plist")
    return f"{head}<!-- {MARK}, which writes over it. -->\n{end}{rest}"


def _quoted(word: str) -> str:
    """Quote a word for systemd: specifiers doubled, and quotes added if needed."""
    word = word.replace("%", "%%")
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
