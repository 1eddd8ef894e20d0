"""Compile kernels and report registers, spills, shared memory and instructions. It needs no GPU.

If `nvdisasm` is installed (from the package nvidia-cuda-nvdisasm, or the toolkit), it counts the instructions
of the machine code, each once, however often a loop runs it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaski.ml.cuda.device import Program
from chaski.ml.cuda.driver import compile_program
from chaski.ml.cuda.sources import OPTIONS

__all__ = ["FREE", "Compiled", "KernelCode", "kernels_in", "nvdisasm"]

FREE = ("--fmad=true", "--use_fast_math", *(option for option in OPTIONS if "fmad" not in option))
"""Options of a build with free rounding: products and sums are fused, and functions are approximated."""


@dataclass(frozen=True, slots=True)
class KernelCode:
    """The resources of a kernel. `instructions` is None without a disassembler."""

    registers: int
    spills: int
    """Bytes that its threads spill for lack of registers."""
    shared: int
    instructions: int | None


@dataclass(slots=True)
class Compiled:
    """Programs for an architecture, compiled on demand."""

    architecture: str
    options: Sequence[str] = OPTIONS
    _known: dict[Program, Mapping[str, KernelCode]] = field(default_factory=dict)

    def of(self, program: Program) -> Mapping[str, KernelCode]:
        """Return the kernels of a program, by name."""
        if program not in self._known:
            self._known[program] = kernels_in(program, self.architecture, self.options)
        return self._known[program]


def kernels_in(
    program: Program, architecture: str, options: Sequence[str] = OPTIONS
) -> Mapping[str, KernelCode]:
    """Compile a program; return its kernels by name. Raises ComputationError if it does not compile."""
    told: list[str] = []
    code = compile_program(program, architecture, (*options, "--ptxas-options=-v"), told.append)
    counts = _instructions(code)
    found = {}
    for part in re.split(r"(?=Compiling entry function)", "".join(told)):
        name, registers = re.search(r"entry function '(\w+)'", part), re.search(r"Used (\d+) registers", part)
        if name is None or registers is None:
            continue
        spills, shared = re.search(r"(\d+) bytes spill stores", part), re.search(r"(\d+) bytes smem", part)
        assert spills is not None, part
        found[name[1]] = KernelCode(
            int(registers[1]), int(spills[1]), int(shared[1]) if shared else 0, counts.get(name[1])
        )
    return found


def nvdisasm() -> str | None:
    """Return the path of NVIDIA's disassembler, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    packaged = (path for folder in folders for path in sorted(Path(folder).glob("*/bin/nvdisasm")))
    return next(map(str, packaged), None) or shutil.which("nvdisasm")


def _instructions(code: bytes) -> Mapping[str, int]:
    """Return the number of instructions of each kernel; empty without a disassembler."""
    program = nvdisasm()
    if program is None:
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        listed = subprocess.run([program, "-c", file.name], capture_output=True, text=True, check=True).stdout
    counts: dict[str, int] = {}
    name = ""
    for line in listed.splitlines():
        section = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        if section is not None:
            name = section[1]
        # After the last instruction, NOPs fill the section.
        elif name and re.match(r"\s*/\*[0-9a-f]{4,}\*/", line) and " NOP " not in line:
            counts[name] = counts.get(name, 0) + 1
    return counts
