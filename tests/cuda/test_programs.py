"""Every kernel compiles for every architecture that is meant, and spills no registers. No GPU is needed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from chaski.formats.quant import QuantType
from chaski.ml.cuda.device import Program
from chaski.ml.elementwise import ELEMENTWISE
from tests.native.matmul_rule import QUANTIZED_TYPES

pytest.importorskip("cuda.bindings.nvrtc", reason="the runtime compiler is not installed")

ARCHITECTURES = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
FLOATS = ["F32Weights", "F16Weights", "BF16Weights"]


def programs_of_formats() -> list[Program]:
    found = []
    for type in QUANTIZED_TYPES:
        format = ("CHASKI_FORMAT", type.name)
        unit = 1 if type.block_size == 256 else 2
        found += [
            Program("embedding", (format,)),
            *(
                Program(
                    "matmul",
                    (format, ("CHASKI_TOKENS", tokens), ("CHASKI_GROUPS", 8), ("CHASKI_UNIT", unit)),
                )
                for tokens in (1, 8)
            ),
            Program(
                "matmul_many",
                (format, ("CHASKI_TOKENS", 128), ("CHASKI_PANELS", 4), ("CHASKI_BOUNDS", "256,2")),
            ),
        ]
    # Programs for experts differ in where rows and matrices begin.
    found += [
        Program(each.file, (*each.defines, ("CHASKI_EXPERTS", 1)))
        for each in found
        if each.file != "embedding" and each.defines[0][1] in ("Q8_0", "Q4_K", "MXFP4")
    ]
    return found


def other_programs() -> list[Program]:
    rounding = [("CHASKI_SUPER_BLOCKS", 0), ("CHASKI_SUPER_BLOCKS", 1)]
    stored = ["I16", "F16", "BF16", "F32", "Q8_0", "Q4_0"]
    heads = (("CHASKI_SIZE", 128), ("CHASKI_VALUE_SIZE", 128))
    return [
        *(Program("matmul_float", (("CHASKI_WEIGHTS", each), ("CHASKI_TOKENS", 4))) for each in FLOATS),
        *(Program("embedding", (("CHASKI_WEIGHTS", each),)) for each in FLOATS),
        *(Program("quantize", (each,)) for each in rounding),
        *(Program("norms", (("CHASKI_ROUNDS", 1), each)) for each in rounding),
        *(Program("elementwise", (("CHASKI_FORMULA", name), rounding[1])) for name in ELEMENTWISE),
        *(Program("storage", (("CHASKI_STORED", f"DType::{each}"),)) for each in stored),
        Program(
            "storage",
            (("CHASKI_KEYS", "DType::I16"), ("CHASKI_VALUES", "DType::F16"), ("CHASKI_EACH", 8)),
        ),
        *(
            Program(
                "attention",
                (
                    ("CHASKI_KEYS", f"DType::{each}"),
                    ("CHASKI_VALUES", f"DType::{each}"),
                    *heads,
                    ("CHASKI_ROWS", 16 if each == "I16" else 4),
                    ("CHASKI_SPLIT", split),
                    ("CHASKI_HEADS", 2),
                    ("CHASKI_SUPER_BLOCKS", 1),
                ),
            )
            for each in stored
            for split in (0, 1)
        ),
        Program(
            "matmul_float", (("CHASKI_WEIGHTS", "F16Weights"), ("CHASKI_TOKENS", 4), ("CHASKI_EXPERTS", 1))
        ),
        Program("adapters"),
        Program("experts"),
        Program("recurrent"),
        Program("rows"),
        Program("top_k"),
        Program("unpack"),
    ]


def check(program: Program, architecture: str) -> None:
    from chaski.ml.cuda.driver import compile_program

    messages: list[str] = []
    code = compile_program(program, architecture, ("--ptxas-options=-v",), messages.append)
    assert code[:4] == b"\x7fELF"
    spilled = re.findall(r"(\d+) bytes spill stores", "".join(messages))
    assert spilled, "the compiler says nothing of registers"
    # Products of many tokens share registers between two blocks of threads, and some keep a little elsewhere.
    assert max(map(int, spilled)) <= (200 if program.file == "matmul_many" else 0), messages


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.parametrize("program", other_programs(), ids=str)
def test_programs(program: Program) -> None:
    check(program, "sm_90")


def some_are_usual(programs: list[Program]) -> list[Any]:
    """Those of one format of each kind; all together take a minute."""
    usual = {"Q8_0", "Q4_K", "Q6_K", "MXFP4"}
    is_usual = [not usual.isdisjoint(value for _, value in program.defines) for program in programs]
    return [
        pytest.param(program, marks=() if is_kept else (pytest.mark.slow,))
        for program, is_kept in zip(programs, is_usual, strict=True)
    ]


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.parametrize("program", some_are_usual(programs_of_formats()), ids=str)
def test_programs_of_formats(program: Program) -> None:
    check(program, "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [each for each in ARCHITECTURES if each != "sm_90"])
def test_other_architectures(architecture: str) -> None:
    for program in (*other_programs(), *programs_of_formats()):
        check(program, architecture)


def test_a_program_that_cannot_be_compiled_says_where() -> None:
    from chaski.errors import ComputationError
    from chaski.ml.cuda.driver import compile_program

    program = Program("embedding", (("CHASKI_FORMAT", "Nothing"),))
    with pytest.raises(ComputationError, match=r"cannot be compiled for sm_90: embedding\.cu\(\d+\): error"):
        compile_program(program, "sm_90")


def test_the_names_of_formats_are_those_of_types() -> None:
    assert {type.name for type in QUANTIZED_TYPES} <= {type.name for type in QuantType}
