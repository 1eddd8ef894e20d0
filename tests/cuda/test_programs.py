"""Every kernel compiles for every supported architecture without spilling registers. No GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.formats.quant import QuantType
from chaski.ml.cuda.device import Program
from chaski.ml.elementwise import ELEMENTWISE
from tests.cuda.limits import limits_of
from tests.native.matmul_rule import QUANTIZED_TYPES

pytest.importorskip("cuda.bindings.nvrtc", reason="the runtime compiler is not installed")

ARCHITECTURES = ["sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
K_TYPES = (QuantType.Q2_K, QuantType.Q3_K, QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K)
FLOATS = ["F32Weights", "F16Weights", "BF16Weights"]


def many_tokens(type: QuantType, panels: int = 4) -> list[Program]:
    """Return the programs of 8 warps for 32 and 64 tokens or, without super-blocks, 16 warps for 128."""
    if type in K_TYPES:
        return [
            Program(
                "matmul_super_many",
                (
                    *(("CHASKI_FORMAT", type.name), ("CHASKI_TOKENS", tokens)),
                    *(("CHASKI_PANELS", 8 // splits), ("CHASKI_SPLITS", splits), ("CHASKI_BOUNDS", "256,2")),
                ),
            )
            for tokens, splits in ((64, 1), (64, 2), (32, 4))
        ]
    tiles = (("CHASKI_PANELS", panels), ("CHASKI_TILES", panels), ("CHASKI_STAGES", 3))
    return [
        Program(
            "matmul_many",
            (("CHASKI_FORMAT", type.name), ("CHASKI_TOKENS", 128), *tiles, ("CHASKI_BOUNDS", "512,1")),
        )
    ]


def few_tokens(type: QuantType) -> list[Program]:
    """Return the programs for 1 and 8 tokens and, with super-blocks, also 16; these have 16 warps."""
    format = ("CHASKI_FORMAT", type.name)
    if type in K_TYPES:
        warps = (("CHASKI_WARPS", 16), ("CHASKI_KEPT", 0))
        return [
            Program(
                "matmul_super", (format, ("CHASKI_TOKENS", tokens), *warps, ("CHASKI_BOUNDS", f"{threads},1"))
            )
            for tokens, threads in ((1, 544), (8, 640), (16, 640))
        ]
    unit = 1 if type.block_size == 256 else 2
    groups = (("CHASKI_GROUPS", 8), ("CHASKI_UNIT", unit))
    return [Program("matmul", (format, ("CHASKI_TOKENS", tokens), *groups)) for tokens in (1, 8)]


def with_tail(program: Program, operation: str) -> Program:
    """Return the program that ends with an elementwise operation and its rounding."""
    operands = len(ELEMENTWISE[operation].operands)
    end = (("CHASKI_FORMULA", operation), ("CHASKI_OPERANDS", operands), ("CHASKI_SUPER_BLOCKS", 1))
    return Program(program.file, (*program.defines, *end))


def with_heads(program: Program, type: str) -> Program:
    """Return the program that turns and stores heads of queries, keys and values."""
    types = (("CHASKI_KEYS", f"DType::{type}"), ("CHASKI_VALUES", f"DType::{type}"))
    sizes = (("CHASKI_SIZE", 128), ("CHASKI_VALUE_SIZE", 128), ("CHASKI_PAIRS", 64), ("CHASKI_NEOX", 0))
    parts = (("CHASKI_KEY_PART", 1), ("CHASKI_VALUE_PART", 2))
    return Program(program.file, (*program.defines, *types, *sizes, *parts))


def with_norm(program: Program) -> Program:
    """Return the program of a product of one token that begins with a norm."""
    defines = tuple(each for each in program.defines if each[0] != "CHASKI_KEPT")
    begin = (("CHASKI_KEPT", 1), ("CHASKI_ROW", 4096))
    is_super = () if "CHASKI_FORMULA" in dict(defines) else (("CHASKI_SUPER_BLOCKS", 1),)
    return Program(program.file, (*defines, *begin, *is_super))


def programs_of_formats() -> list[Program]:
    found = []
    for type in QUANTIZED_TYPES:
        format = ("CHASKI_FORMAT", type.name)
        found += [Program("embedding", (format,)), *few_tokens(type), *many_tokens(type)]
        if type.name in ("Q8_0", "Q4_K", "Q6_K"):
            found += [with_tail(each, name) for each in few_tokens(type) for name in ("swiglu", "gelu")]
            found += [with_heads(each, stored) for each in few_tokens(type) for stored in ("I16", "Q8_0")]
        if type in K_TYPES:
            of_one = few_tokens(type)[0]
            found += [
                with_norm(each) for each in (of_one, with_tail(of_one, "swiglu"), with_heads(of_one, "I16"))
            ]
    # Programs for experts differ in the starts of rows and matrices.
    found += [
        Program(each.file, (*each.defines, ("CHASKI_EXPERTS", 1)))
        for each in found
        if each.file != "embedding"
        and dict(each.defines).keys().isdisjoint(("CHASKI_ROW", "CHASKI_PAIRS"))
        and each.defines[0][1] in ("Q8_0", "Q4_K", "MXFP4")
    ]
    return found


def other_programs() -> list[Program]:
    rounding = [("CHASKI_SUPER_BLOCKS", 0), ("CHASKI_SUPER_BLOCKS", 1)]
    stored = ["I16", "F16", "BF16", "F32", "Q8_0", "Q4_0", "Q3_0"]
    latent = (("CHASKI_SIZE", 96), ("CHASKI_VALUE_SIZE", 64), ("CHASKI_VALUES_IN_KEYS", 1))
    joined = (("CHASKI_HEADS", 4), ("CHASKI_BLOCKS", 1))
    few_rows = (("CHASKI_ROWS", 4), ("CHASKI_SPLIT", 1), rounding[0], *joined)
    heads = (("CHASKI_SIZE", 128), ("CHASKI_VALUE_SIZE", 128), ("CHASKI_VALUES_IN_KEYS", 0))
    entries = (("CHASKI_SIZE", 128), ("CHASKI_VALUE_SIZE", 128), ("CHASKI_VALUES_IN_KEYS", 1))

    def kept(type: str) -> list[tuple[str, str]]:
        return [("CHASKI_KEYS", f"DType::{type}"), ("CHASKI_VALUES", f"DType::{type}")]

    return [
        *(Program("matmul_float", (("CHASKI_WEIGHTS", each), ("CHASKI_TOKENS", 4))) for each in FLOATS),
        *(Program("embedding", (("CHASKI_WEIGHTS", each),)) for each in FLOATS),
        *(Program("quantize", (each,)) for each in rounding),
        *(
            Program("norms", (("CHASKI_ROW", size), each, *bounds))
            for size, bounds in ((128, ()), (4096, ()), (16384, (("CHASKI_BOUNDS", "1024,1"),)))
            for each in rounding
        ),
        *(Program("elementwise", (("CHASKI_FORMULA", name), rounding[1])) for name in ELEMENTWISE),
        *(Program("storage", (("CHASKI_STORED", f"DType::{each}"),)) for each in stored),
        Program("storage", (("CHASKI_STORED", "DType::Q4_0"), ("CHASKI_ROTATED", 128))),
        *(Program("hadamard", (("CHASKI_BLOCK", block),)) for block in (32, 128, 512)),
        *(
            Program(
                "storage",
                (
                    ("CHASKI_KEYS", f"DType::{each}"),
                    ("CHASKI_VALUES", f"DType::{each}"),
                    *heads,
                    ("CHASKI_PAIRS", 64),
                    ("CHASKI_NEOX", 1),
                ),
            )
            for each in stored
        ),
        *(
            Program(
                "attention",
                (*kept(each), *heads, ("CHASKI_ROWS", 4), ("CHASKI_SPLIT", split), rounding[split], *joined),
            )
            for each in stored
            for split in (0, 1)
        ),
        *(Program("attention", (*kept(each), *latent, *few_rows)) for each in stored),
        Program("entries", (*kept("I16"), *entries, ("CHASKI_ROWS", 8), rounding[0])),
        Program("entries", (*kept("F16"), *entries, ("CHASKI_ROWS", 8), rounding[0])),
        *(
            Program(
                "attention_i16",
                (
                    *(*kept("I16"), *heads, ("CHASKI_ROWS", 8 if split else 32), ("CHASKI_SPLIT", split)),
                    *(rounding[split], *joined, ("CHASKI_STAGED", split), ("CHASKI_BOUNDS", "256,2")),
                ),
            )
            for split in (0, 1)
        ),
        Program(
            "matmul_float", (("CHASKI_WEIGHTS", "F16Weights"), ("CHASKI_TOKENS", 4), ("CHASKI_EXPERTS", 1))
        ),
        *many_tokens(QuantType.Q8_0, 8),
        *(
            Program("choose", (*kept(each), *heads, ("CHASKI_ROWS", rows), rounding[0]))
            for each, rows in (("I16", 16), ("F16", 16), ("F32", 8))
        ),
        Program("adapters"),
        Program("experts"),
        Program("ngrams"),
        Program("pooling"),
        Program("relative_dots"),
        Program("recurrent"),
        Program("rows"),
        Program("scans"),
        Program("streams"),
        Program("top_k"),
        Program("sample"),
        Program("unpack"),
    ]


def check(program: Program, architecture: str) -> None:
    """Check that the kernels of a program exceed neither their registers nor their spills."""
    from benchmarks.gpu_compiled import kernels_in

    found = kernels_in(program, architecture)
    assert found
    for name, code in found.items():
        registers, spills = limits_of(name, program, architecture)
        assert code.registers <= registers, f"{name}: {code}"
        assert code.spills <= spills, f"{name}: {code}"


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.parametrize("program", other_programs(), ids=str)
def test_programs(program: Program) -> None:
    check(program, "sm_90")


def some_are_usual(programs: list[Program]) -> list[Any]:
    """Mark one format of each kind as usual; all of them take a minute."""
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


def one_of_each() -> list[Program]:
    """Return one program of each kind, ignoring differences in types of weights and storage."""
    kinds: dict[object, Program] = {}
    for program in (*programs_of_formats(), *other_programs()):
        defines = dict(program.defines)
        if defines.get("CHASKI_FORMAT", "Q4_K") == "Q4_K":
            of_kind = [
                defines.get(f"CHASKI_{what}")
                for what in ("TOKENS", "SPLIT", "EXPERTS", "PAIRS", "FORMULA", "ROW")
            ]
            kinds.setdefault((program.file, "CHASKI_WEIGHTS" in defines, *of_kind), program)
    return list(kinds.values())


OTHERS = [each for each in ARCHITECTURES if each != "sm_90"]
OLDEST = OTHERS[0]  # which has the fewest registers and the least memory; the others are slow


@pytest.mark.timed
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(each, marks=pytest.mark.long if each == OLDEST else pytest.mark.slow) for each in OTHERS],
)
@pytest.mark.parametrize("program", one_of_each(), ids=str)
def test_a_program_of_each_kind_for_other_architectures(program: Program, architecture: str) -> None:
    check(program, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", OTHERS)
def test_all_for_other_architectures(architecture: str) -> None:
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
