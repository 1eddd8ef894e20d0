"""The machine, as a record names it: no host, no user, no path."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chaski.env import Environment
from chaski.ml import CPUOptions, open_backend
from chaski.ml.machine import cpu_info

__all__ = ["Machine", "this_machine"]

# AMD's numbers of families, whose names virtual machines hide; family 25 is two of them.
_ZEN = {"23": "Zen 2", "25": "Zen 3", "26": "Zen 5"}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a measurement."""

    cpu: str
    isa: str
    threads: int

    @property
    def folder(self) -> str:
        """The name of the folder for records of this processor with this instruction set."""
        cpu = self.cpu.lower().replace("(r)", "").replace("(tm)", "")
        return "-".join(re.findall(r"[a-z0-9.]+", f"{cpu} {self.isa}"))


def this_machine(threads: int) -> Machine:
    """This one, with the instruction set that models are computed with here."""
    isa = Environment.read().isa
    backend = open_backend("cpu", CPUOptions(threads, isa))
    device = backend.devices()[0]
    backend.close()
    return Machine(_named(device.model), device.features[-1] if isa == "auto" else isa, threads)


def _named(cpu: str) -> str:
    """Return the name of a processor with its generation: AMD's names, such as AMD EPYC, do not say it."""
    info = cpu_info()
    zen = _ZEN.get(info.get("cpu family", ""))
    if not cpu.startswith("AMD") or zen is None:
        return cpu
    return f"{cpu}, {'Zen 4' if zen == 'Zen 3' and 'avx512f' in info.get('flags', '') else zen}"
