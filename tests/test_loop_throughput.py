from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.loop_throughput import ARCHITECTURES, architecture_of, busiest_loop, cycles, main, products

X86 = ARCHITECTURES[62]
ARM = ARCHITECTURES[183]

# Products of bytes in pairs, whose sums are widened, next to the products that scale them.
LOOP = """
    .globl  dot
dot:
.again:
    vmovdqu (%rdi), %ymm1
    vpbroadcastd (%rsi), %ymm2
    vpmaddubsw %ymm2, %ymm1, %ymm3
    vpmaddwd %ymm0, %ymm3, %ymm3
    vpaddd %ymm3, %ymm4, %ymm4
    add $32, %rdi
    cmp %rdi, %rdx
    jne .again
    ret
"""


@pytest.mark.parametrize(
    ("architecture", "loop", "expected"),
    [
        (X86, ["vpdpbusd %zmm1,%zmm2,%zmm3", "vpdpwssd %zmm1,%zmm2,%zmm4"], 64),
        (X86, ["vpdpbusd (%rax){1to16},%zmm2,%zmm3"], 64),
        (X86, ["{vex} vpdpbusd %ymm1,%ymm2,%ymm3"], 32),
        (X86, ["vpmaddubsw %ymm1,%ymm2,%ymm3", "vpmaddwd %ymm0,%ymm3,%ymm3"], 32),
        (X86, ["vpmaddwd 0x20(%rax),%ymm3,%ymm3", "vfmadd231ps %ymm1,%ymm2,%ymm3"], 16),
        (X86, ["vdpbf16ps %zmm1,%zmm2,%zmm3"], 32),
        (X86, ["vfmadd132ps (%rax),%ymm2,%ymm3"], 8),
        (X86, ["tdpbssd %tmm6,%tmm4,%tmm0", "vpdpwssd %zmm1,%zmm2,%zmm4"], 16 * 16 * 64),
        (X86, ["vmovdqu (%rax),%ymm1"], 0),
        (ARM, ["smmla v0.4s, v1.16b, v2.16b", "fmla v3.4s, v4.4s, v5.4s"], 32),
        (ARM, ["fmla v3.4s, v4.4s, v5.4s"], 4),
    ],
)
def test_the_first_kind_of_products_counts(architecture, loop, expected):
    assert products(loop, architecture) == expected


def test_a_loop_that_calls_is_none():
    code = {0: "vpdpbusd %zmm1,%zmm2,%zmm3", 6: "call 40 <f>", 11: "jne 0 <dot>"}
    assert busiest_loop(code, X86) is None
    assert busiest_loop({0: code[0], 6: "jne 0 <dot>"}, X86) == [code[0], "jne 0 <dot>"]


def test_other_files_are_refused(tmp_path):
    text = tmp_path / "text.o"
    text.write_bytes(b"no object at all, but long enough")
    with pytest.raises(SystemExit, match="neither an object of x86-64"):
        architecture_of(str(text))


def _mca() -> str:
    for name in ("llvm-mca-19", "llvm-mca"):
        if shutil.which(name):
            return name
    pytest.skip("needs llvm-mca")


def _assembled(tmp_path: Path) -> Path:
    for tool in ("as", "objdump"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} of binutils")
    source, loop = tmp_path / "loop.s", tmp_path / "loop.o"
    source.write_text(LOOP)
    done = subprocess.run(["as", "--64", source, "-o", loop], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("this assembler is not one for x86-64")
    return loop


def test_the_loop_of_an_object(tmp_path, monkeypatch, capsys):
    arguments = ["loop_throughput", str(_assembled(tmp_path)), "dot", "znver3", "haswell", "--mca", _mca()]
    monkeypatch.setattr("sys.argv", arguments)
    main()
    name, counts, zen3, haswell = capsys.readouterr().out.splitlines()
    assert "<dot>" in name
    assert counts.split() == ["8", "instructions,", "32", "multiply-adds"]
    # Haswell has one unit for both products; Zen 3 has two, and issues six instructions per cycle.
    assert zen3.split()[:2] == ["znver3:", "1"]
    assert haswell.split()[:2] == ["haswell:", "2"]


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
def test_int8_has_four_times_the_products_of_float32(cpu):
    """This matches measurements on both (docs/performance.md); LLVM's own model gives less with 512 bits."""
    mca = _mca()
    known = subprocess.run([mca, f"-mcpu={cpu}"], input="nop\n", capture_output=True, text=True)
    if "is not a recognized processor" in known.stderr:
        pytest.skip(f"this llvm-mca does not know {cpu}")
    tile = [f"zmm{n}" for n in range(4, 28)]
    rates = []
    for instruction in ("vpdpbusd", "vfmadd231ps"):
        loop = [f"{instruction} %zmm1,%zmm2,%{sums}" for sums in tile]
        rates.append(products(loop, X86) / cycles(loop, cpu, X86, mca))
    assert rates[0] == pytest.approx(4 * rates[1], rel=0.05)
