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
    loops: Sequence[range] = ()
    """Its loops, as numbers of instructions."""

    def largest_loop(self, inside: range | None = None) -> range:
        """Return the loop with the most instructions, of all or of those inside another; empty if none is."""
        chosen = (
            each
            for each in self.loops
            if inside is None or (each != inside and inside.start <= each.start and each.stop <= inside.stop)
        )
        return max(chosen, key=len, default=range(0))


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
    machine_code = _machine_code(code)
    found = {}
    for part in re.split(r"(?=Compiling entry function)", "".join(told)):
        name, registers = re.search(r"entry function '(\w+)'", part), re.search(r"Used (\d+) registers", part)
        if name is None or registers is None:
            continue
        spills, shared = re.search(r"(\d+) bytes spill stores", part), re.search(r"(\d+) bytes smem", part)
        assert spills is not None, part
        count, loops = machine_code.get(name[1], (None, ()))
        found[name[1]] = KernelCode(
            int(registers[1]), int(spills[1]), int(shared[1]) if shared else 0, count, loops
        )
    return found


def nvdisasm() -> str | None:
    """Return the path of NVIDIA's disassembler, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    packaged = (path for folder in folders for path in sorted(Path(folder).glob("*/bin/nvdisasm")))
    return next(map(str, packaged), None) or shutil.which("nvdisasm")


def _machine_code(code: bytes) -> Mapping[str, tuple[int, Sequence[range]]]:
    """Return the number of instructions of each kernel and its loops; empty without a disassembler."""
    program = nvdisasm()
    if program is None:
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        listed = subprocess.run([program, "-c", file.name], capture_output=True, text=True, check=True).stdout
    found = {}
    for part in re.split(r"(?m)^\s*(?=\.section\s+\.text\.\w)", listed)[1:]:
        name = re.match(r"\.section\s+\.text\.(\w+)", part)
        assert name is not None
        found[name[1]] = _loops(part)
    return found


def _loops(listed: str) -> tuple[int, Sequence[range]]:
    """Return the number of instructions of a kernel, and its loops: the ways back to earlier labels."""
    labels: dict[str, int] = {}
    loops = []
    count = 0
    for line in listed.splitlines():
        label = re.match(r"(\.L_x_\d+):", line.strip())
        if label is not None:
            labels[label[1]] = count
        # After the last instruction, NOPs fill the section.
        elif re.match(r"\s*/\*[0-9a-f]{4,}\*/", line) and not re.search(r"\bNOP\b", line):
            count += 1
            target = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
            if target is not None and target[1] in labels:
                loops.append(range(labels[target[1]], count))
    return count, loops
