"""The machine as records describe it, without host, user or path names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chaski.env import Environment
from chaski.ml import CPUOptions, open_backend
from chaski.ml.machine import cpu_info

__all__ = ["Machine", "this_machine"]

# AMD's family numbers, since virtual machines hide the names; family 25 covers two generations.
_ZEN = {"23": "Zen 2", "25": "Zen 3", "26": "Zen 5"}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a measurement."""

    cpu: str
    isa: str
    threads: int

    @property
    def folder(self) -> str:
        """Return the name of the folder for records of this processor with this instruction set."""
        cpu = self.cpu.lower().replace("(r)", "").replace("(tm)", "")
        return "-".join(re.findall(r"[a-z0-9.]+", f"{cpu} {self.isa}"))


def this_machine(threads: int) -> Machine:
    """Return this machine, with the instruction set that models use on it."""
    isa = Environment.read().isa
    backend = open_backend("cpu", CPUOptions(threads, isa))
    device = backend.devices()[0]
    backend.close()
    return Machine(_named(device.model), device.features[-1] if isa == "auto" else isa, threads)


def _named(cpu: str) -> str:
    """Return the name of a processor with its generation, which AMD's names, such as AMD EPYC, omit."""
    info = cpu_info()
    zen = _ZEN.get(info.get("cpu family", ""))
    if not cpu.startswith("AMD") or zen is None:
        return cpu
    return f"{cpu}, {'Zen 4' if zen == 'Zen 3' and 'avx512f' in info.get('flags', '') else zen}"
