"""The throughput that llvm-mca expects of compiled inner loops, on ARM processors that are not at hand.

python -m tools.loop_throughput OBJECT FUNCTION CPU...: of each function whose name contains FUNCTION, the
loop with the most products for its instructions is taken as a block without branches that repeats for ever.
This is no measurement: caches, prefetchers and what is around the loop do not exist for it.
"""

import argparse
import re
import subprocess
from collections.abc import Iterator

# Multiply-adds of each instruction. Those of floats count where a loop has none of integers.
_INTEGERS = {"smmla": 32, "sdot": 16}
_FLOATS = {"bfmlalb": 4, "bfmlalt": 4, "fmla": 4}

_BRANCH = re.compile(r"(?:b|b\.\w+|cbn?z|tbn?z)\s(?:.*[\s,])?([0-9a-f]+) <")
_REPEATS = 200


def _functions(object_file: str, objdump: str) -> Iterator[tuple[str, dict[int, str]]]:
    """The name of each function of an object file, and its instructions by address."""
    command = [objdump, "-dC", "--no-show-raw-insn", object_file]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for section in re.split(r"\n(?=[0-9a-f]+ <)", listing):
        lines = re.findall(r"^ *([0-9a-f]+):\t(.*?)\s*(?://.*)?$", section, re.MULTILINE)
        yield section.split("\n", 1)[0], {int(address, 16): text for address, text in lines}


def _loops(code: dict[int, str]) -> Iterator[list[str]]:
    """The instructions from the target of each branch backwards to the branch."""
    for address, text in code.items():
        branch = _BRANCH.match(text)
        if branch and int(branch[1], 16) <= address:
            yield [code[a] for a in code if int(branch[1], 16) <= a <= address]


def _products(loop: list[str]) -> int:
    """The multiply-adds of a loop."""
    names = [text.split()[0] for text in loop]
    return sum(_INTEGERS.get(n, 0) for n in names) or sum(_FLOATS.get(n, 0) for n in names)


def _cycles(loop: list[str], cpu: str, mca: str) -> float:
    """The cycles of one repetition."""
    straight = "\n".join(text for text in loop if not _BRANCH.match(text))
    command = [mca, "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+dotprod,+i8mm,+bf16"]
    command.append(f"-iterations={_REPEATS}")
    report = subprocess.run(command, input=straight, capture_output=True, text=True, check=True).stdout
    total = re.search(r"Total Cycles: +(\d+)", report)
    assert total is not None
    return int(total[1]) / _REPEATS


def main() -> None:
    """Prints the numbers of each function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("object_file")
    parser.add_argument("function")
    parser.add_argument("cpu", nargs="+")
    parser.add_argument("--objdump", default="aarch64-linux-gnu-objdump")
    parser.add_argument(
        "--mca", default="llvm-mca", help="of LLVM 16 or later, which knows Neoverse V1 and V2"
    )
    options = parser.parse_args()
    for name, code in _functions(options.object_file, options.objdump):
        loops = [loop for loop in _loops(code) if _products(loop) > 0]
        if options.function not in name or not loops:
            continue
        loop = max(loops, key=lambda loop: _products(loop) / len(loop))
        print(f"{name}\n    {len(loop)} instructions, {_products(loop)} multiply-adds")
        for cpu in options.cpu:
            cycles = _cycles(loop, cpu, options.mca)
            print(f"    {cpu}: {cycles:.0f} cycles, {_products(loop) / cycles:.1f} multiply-adds a cycle")


if __name__ == "__main__":
    main()
