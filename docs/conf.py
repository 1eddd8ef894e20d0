"""How Sphinx makes the site of these pages; `make docs` runs it."""

from __future__ import annotations

import re
from typing import Any

import chaski
from chaski.errors import ChaskiError

project = "chaski"
author = "the authors of chaski"
version = release = chaski.__version__
html_title = f"chaski {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
html_theme = "furo"
exclude_patterns = ["plots"]
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4
# Names in docstrings stand in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# Most blocks are commands and what they print.
highlight_language = "none"
# `make links` asks the network for all links that lead out of the site.
linkcheck_ignore = [r"http://127\.0\.0\.1", r"http://localhost"]

# A row of a table in a docstring: a name, two spaces or more, and what it means.
_ROW = re.compile(r"(\w+(?:, \w+)*) {2,}(\S.*)")


def _readable(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Tables of docstrings become lists of definitions, the tree of errors a literal block."""
    if name == "chaski":  # the page has an introduction of its own
        lines.clear()
    tree = next((index for index, line in enumerate(lines) if line.startswith("├")), None)
    if tree is not None:
        lines[tree - 1 :] = ["::", "", *(f"    {line}" for line in lines[tree - 1 :])]
        return
    is_table = False
    for index in reversed(range(len(lines))):
        if row := _ROW.fullmatch(lines[index]):
            lines[index : index + 1] = [f"``{row[1]}``", f"    {row[2]}"]
            is_table = True
    if is_table:
        lines[:] = [re.sub(r"^ {4,}", "    ", line) for line in lines]


def _without_errors(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Errors have a page of their own."""
    is_error = isinstance(obj, type) and issubclass(obj, ChaskiError)
    return True if is_error and app.env.docname == "api" else None


def _without_constructor(
    app: Any, what: str, name: str, obj: Any, options: Any, arguments: str, result: str
) -> tuple[str, str] | None:
    """Users get objects of these classes, and make none but workers."""
    return ("", "") if what == "class" and name != "chaski.Worker" else None


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", _without_constructor)
    app.connect("autodoc-process-docstring", _readable)
    app.connect("autodoc-skip-member", _without_errors)
