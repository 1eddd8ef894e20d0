"""Draw sentences at random from docs, docstrings, comments and messages, to judge how they read.

`python -m tools.sentences --seed 1` prints 60 of them, each with its file. `make lint` does not run this: a
person reads the sentences and rewrites those that are hard to read.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

ROOT = Path(__file__).parent.parent
_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*])")
_CODE_BLOCK = re.compile(r"^\s*(```|:::|~~~).*?^\s*\1", re.M | re.S)
_C_COMMENT = re.compile(r"(?:^[ \t]*//[^\n]*\n)+|/\*.*?\*/", re.M | re.S)
_SOURCES = {".cpp", ".h", ".cu", ".ts", ".tsx"}
_FEWEST_WORDS = 4


def sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph, without fragments of a few words."""
    parts = _END.split(re.sub(r"\s+", " ", text).strip())
    return [part for part in parts if len(part.split()) >= _FEWEST_WORDS]


def page_paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page, without tables, headings and code blocks."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[*-] )", _CODE_BLOCK.sub("", text)):
        if not paragraph.lstrip().startswith(("|", "#", "<")):
            yield paragraph


def python_paragraphs(text: str) -> Iterator[str]:
    """Yield docstrings by paragraph, arguments of errors, and comments."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield from docstring.split("\n\n")
            case ast.Raise(exc=ast.Call(args=[ast.Constant(value=str(message)), *_])):
                yield message
            case ast.Raise(exc=ast.Call(args=[ast.JoinedStr(values=parts), *_])):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield " ".join(lines)
                lines = []
            lines.append(token.string.lstrip("# "))
            last = token.start[0]
    yield " ".join(lines)


def source_paragraphs(text: str) -> Iterator[str]:
    """Yield the comments of C++, CUDA and TypeScript."""
    for match in _C_COMMENT.finditer(text):
        yield re.sub(r"^[ \t]*(//+|/?\*+/?)|\*/", "", match[0], flags=re.M)


def all_sentences(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each sentence with the file that contains it."""
    readers = {".md": page_paragraphs, ".py": python_paragraphs} | dict.fromkeys(_SOURCES, source_paragraphs)
    for path in paths:
        reader = readers.get(Path(path).suffix)
        if reader is not None and "/bundle/" not in path:
            for paragraph in reader((ROOT / path).read_text()):
                yield from ((path, sentence) for sentence in sentences(paragraph))


def main() -> None:
    """Print a random sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="number of sentences")
    asked = parser.parse_args()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = list(all_sentences(tracked.splitlines()))
    for number, (path, sentence) in enumerate(Random(asked.seed).sample(found, asked.count), 1):
        print(f"{number:2} {path}: {sentence[:400]}")


if __name__ == "__main__":
    main()
