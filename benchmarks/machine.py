"""The machine, as a record names it: no host, no user, no path."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chaski.env import Environment
from chaski.ml import CPUOptions, open_backend

__all__ = ["Machine", "this_machine"]


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
    return Machine(device.model, device.features[-1] if isa == "auto" else isa, threads)
