"""Estimate the throughput of compiled inner loops with llvm-mca, for processors that are not available.

    python -m tools.loop_throughput OBJECT FUNCTION CPU...

In each function whose name contains FUNCTION, it takes the loop with the most products per instruction, or
the longest loop without products, as a block without branches that repeats forever. OBJECT is for x86-64 or
64-bit ARM. This is not a measurement: llvm-mca ignores caches, prefetchers and the code around the loop.
"""

import argparse
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_REPEATS = 200


@dataclass(frozen=True, slots=True)
class Architecture:
    """Describes the loops of an architecture, and the products of its instructions."""

    triple: str
    attributes: str
    objdump: str
    comment: str
    branch: re.Pattern[str]
    """A jump; its group is the target address."""
    register: dict[str, int]
    """The bytes of a register by the prefix of its name."""
    products: tuple[dict[str, float], ...]
    """Multiply-adds per byte of the target register; only the first kind in a loop counts."""
    stand_ins: dict[str, dict[str, str]] = field(default_factory=dict)
    """By processor: patterns of instructions that LLVM models wrongly, and their replacements."""
    tile_cycles: int = 0
    """The time of a tile product, which runs in parallel to everything else; LLVM does not model it."""


# Corrections where LLVM 19 to 23 contradict measurements (int8 and bf16 next to fp32 in docs/performance.md):
# instructions with the same operands and units, for which LLVM has the right throughput.
_STAND_INS = {
    "znver4": {
        r"vpdpbusd|vpdpwssd|vdpbf16ps": "vfmadd231ps",  # two units, not one
        r"(?:vpbroadcastd|vbroadcastss)(?=\s.*\(.*%zmm)": "vmovups",  # a load, no shuffle
    },
    "sapphirerapids": {  # LLVM models the client's single 512-bit unit for products; servers have two
        r"(?:vpdpbusd|vpdpwssd|vfmadd\w+ps)(?=\s.*%zmm)": "vpternlogd $150,",
        r"(?:vmulps|vaddps)(?=\s.*%zmm)": "vpaddd",
    },
}

ARCHITECTURES = {
    183: Architecture(  # EM_AARCH64
        triple="aarch64",
        attributes="+dotprod,+i8mm,+bf16",
        objdump="aarch64-linux-gnu-objdump",
        comment="//",
        branch=re.compile(r"(?:b|b\.\w+|cbn?z|tbn?z)\s(?:.*[\s,])?([0-9a-f]+) <"),
        register={"v": 16},
        products=(
            {"smmla": 2.0, "sdot": 1.0},
            {"bfmlalb": 0.25, "bfmlalt": 0.25, "fmla": 0.25},
        ),
    ),
    62: Architecture(  # EM_X86_64
        triple="x86_64",
        attributes="+avx2,+fma,+f16c,+avxvnni,+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512vnni,"
        "+avx512bf16,+amx-tile,+amx-int8",
        objdump="objdump",
        comment="#",
        branch=re.compile(r"j\w+\s+([0-9a-f]+) <"),
        register={"%tmm": 1024, "%zmm": 64, "%ymm": 32, "%xmm": 16},
        products=(
            dict.fromkeys(("tdpbusd", "tdpbssd", "tdpbuud", "tdpbsud"), 16.0),
            {"vpdpbusd": 1.0, "vpmaddubsw": 1.0},
            {"vpdpwssd": 0.5, "vpmaddwd": 0.5},
            {"vdpbf16ps": 0.5},
            dict.fromkeys(("vfmadd132ps", "vfmadd213ps", "vfmadd231ps"), 0.25),
        ),
        stand_ins=_STAND_INS,
        tile_cycles=16,
    ),
}


def architecture_of(object_file: str) -> Architecture:
    """Return the architecture of an ELF file; raises SystemExit with a message for others."""
    with Path(object_file).open("rb") as file:
        header = file.read(20)
    machine = int.from_bytes(header[18:20], "little")
    if header[:4] != b"\x7fELF" or machine not in ARCHITECTURES:
        raise SystemExit(f"{object_file}: neither an object of x86-64 nor one of 64-bit ARM")
    return ARCHITECTURES[machine]


def _functions(object_file: str, objdump: str, comment: str) -> Iterator[tuple[str, dict[int, str]]]:
    """Return the name of each function of an object file, and its instructions by address."""
    line = re.compile(rf"^ *([0-9a-f]+):\t(.*?)\s*(?:{comment}.*)?$", re.MULTILINE)
    command = [objdump, "-dC", "--no-show-raw-insn", object_file]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for section in re.split(r"\n(?=[0-9a-f]+ <)", listing):
        yield section.split("\n", 1)[0], {int(address, 16): text for address, text in line.findall(section)}


def _loops(code: dict[int, str], architecture: Architecture) -> Iterator[list[str]]:
    """Return the instructions from each backward branch's target to the branch, if they make no calls."""
    for address, text in code.items():
        branch = architecture.branch.match(text)
        if branch and int(branch[1], 16) <= address:
            loop = [code[a] for a in code if int(branch[1], 16) <= a <= address]
            if not any(re.match(r"(?:call|bl)\s", instruction) for instruction in loop):
                yield loop


def busiest_loop(code: dict[int, str], architecture: Architecture) -> list[str] | None:
    """Return the loop with the most products per instruction, or else the longest; None without loops."""
    return max(
        _loops(code, architecture),
        key=lambda loop: (products(loop, architecture) / len(loop), len(loop)),
        default=None,
    )


def _name(instruction: str) -> str:
    return instruction.removeprefix("{vex} ").split()[0]


def products(loop: list[str], architecture: Architecture) -> int:
    """Return the multiply-adds of a loop. Tile registers count as full, though they may be smaller."""
    for kind in architecture.products:
        total = sum(
            kind[_name(text)] * _register_bytes(text, architecture) for text in loop if _name(text) in kind
        )
        if total > 0:
            return round(total)
    return 0


def _register_bytes(instruction: str, architecture: Architecture) -> int:
    """Return the bytes of an instruction's widest register: sums are as wide as their factors."""
    operands = instruction.removeprefix("{vex} ").split(None, 1)[1]
    return max((size for start, size in architecture.register.items() if start in operands), default=0)


def cycles(loop: list[str], cpu: str, architecture: Architecture, mca: str) -> float:
    """Return the cycles of one repetition."""
    straight = [text for text in loop if not architecture.branch.match(text)]
    tiles = [text for text in straight if "%tmm" in text]
    lines = [text for text in straight if text not in tiles]
    for wrong, right in architecture.stand_ins.get(cpu, {}).items():
        lines = [re.sub(f"^(?:{{vex}} )?(?:{wrong})", right, text) for text in lines]
    command = [mca, f"-mtriple={architecture.triple}", f"-mcpu={cpu}"]
    command += [f"-mattr={architecture.attributes}", f"-iterations={_REPEATS}"]
    report = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True)
    total = re.search(r"Total Cycles: +(\d+)", report.stdout)
    assert total is not None
    of_tiles = architecture.tile_cycles * sum(_name(text).startswith("tdp") for text in tiles)
    return max(int(total[1]) / _REPEATS, of_tiles)


def main() -> None:
    """Print the numbers of each function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("object_file")
    parser.add_argument("function")
    parser.add_argument("cpu", nargs="+")
    parser.add_argument("--objdump", help="default: the one for the object's architecture")
    parser.add_argument(
        "--mca", default="llvm-mca", help="of LLVM 17 or later, which knows Neoverse V1 and Sapphire Rapids"
    )
    options = parser.parse_args()
    architecture = architecture_of(options.object_file)
    objdump = options.objdump or architecture.objdump
    for name, code in _functions(options.object_file, objdump, architecture.comment):
        if options.function not in name:
            continue
        loop = busiest_loop(code, architecture)
        if loop is None:
            continue
        total = products(loop, architecture)
        print(f"{name}\n    {len(loop)} instructions, {total} multiply-adds")
        for cpu in options.cpu:
            time = cycles(loop, cpu, architecture, options.mca)
            print(f"    {cpu}: {time:.0f} cycles, {total / time:.1f} multiply-adds a cycle")


if __name__ == "__main__":
    main()
