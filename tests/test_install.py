"""The output of `make run` while it compiles."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.install import compiled_file, steps_done

ROOT = Path(__file__).parents[1]
BACKEND = """
def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    print("definitions:", config_settings)
    print("[1/2] Building CXX object one.cpp.o")
    raise SystemExit("two.cpp:1: error: it does not compile")
"""


def command_for(source: Path, *options: str) -> list[str]:
    return ["/usr/bin/g++", "-I/native", *options, "-o", "out.o", "-c", str(source)]


def test_the_last_line_of_a_step_counts():
    log = "*** Configuring\n  [1/13] Building a.o\n  [2/13] Building b.o\nnote: x[9/9]\n"
    assert steps_done(log) == "2 of 13"
    assert steps_done("*** Configuring\n") == ""


@pytest.mark.parametrize(
    ("source", "options", "name"),
    [
        ("native/kernels/attention.cpp", ["-DCHASKI_ISA=avx2"], "attention.cpp for avx2"),
        ("native/tests/main.cpp", [], "main.cpp"),
        ("build/CMakeFiles/x.dir/cmake_pch.hxx.cxx", ["-DCHASKI_ISA=avx512"], "headers for avx512"),
    ],
)
def test_a_compiler_is_at_work_on_a_source(source, options, name, tmp_path):
    assert compiled_file(command_for(tmp_path / source, *options), tmp_path) == name


def test_a_group_says_how_many_files_it_holds(tmp_path):
    source = tmp_path / "build/CMakeFiles/x.dir/Unity/unity_small_kernels_cxx.cxx"
    source.parent.mkdir(parents=True)
    source.write_text('#include "/native/ops.cpp"\n\n#include "/native/pack.cpp"\n')
    name = compiled_file(command_for(source, "-DCHASKI_ISA=neon"), tmp_path)
    assert name == "small kernels for neon (2 files)"


def test_other_processes_are_not_counted(tmp_path):
    assert compiled_file(command_for(Path("/elsewhere/native/ops.cpp")), tmp_path) is None
    assert compiled_file(["/bin/sh", "-c", f"g++ -c {tmp_path}/a.cpp"], tmp_path) is None
    assert compiled_file(["python", str(tmp_path / "a.cpp")], tmp_path) is None
    assert compiled_file([], tmp_path) is None


@pytest.mark.long
def test_what_failed_to_compile_is_shown(tmp_path):
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "trial"\nversion = "1"\ndependencies = ["pip"]\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "tools.install", "NAME=ON"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "s  failed\n" in done.stdout
    assert "'cmake.define.NAME': 'ON'" in done.stdout
    assert "two.cpp:1: error: it does not compile" in done.stdout


HOSTILE = {
    "PYTHONSAFEPATH": "1",
    "PYTHONPATH": "/nowhere",
    "PYTHONHOME": "/nowhere",
    "PYTHONOPTIMIZE": "2",
    "PIP_USER": "1",
    "PIP_TARGET": "/nowhere",
    "PIP_PREFIX": "/nowhere",
    "PIP_REQUIRE_VIRTUALENV": "1",
    "PIP_NO_DEPS": "1",
}


def make(*arguments: str, **environment: str) -> str:
    command = [
        "make",
        "--no-print-directory",
        "--directory",
        str(ROOT),
        f"PYTHON={sys.executable}",
        *arguments,
    ]
    made = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_settings_for_other_projects_change_nothing() -> None:
    """As with PYTHONSAFEPATH=1, which hid the folder `tools` from Python."""
    recipe = (
        '@$(PYTHON) -m tools.install --help; echo "user $$PIP_USER target $$PIP_TARGET deps $$PIP_NO_DEPS"'
    )
    shown = make("--eval", f"probe: ; {recipe}", "probe", **HOSTILE)
    assert shown.startswith("usage: python -m tools.install")
    assert shown.endswith("user 0 target  deps \n")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_wheel_is_announced() -> None:
    shown = make("--dry-run", "--old-file", ".venv/packaging", "wheel", **HOSTILE)
    assert "building a wheel" in shown.splitlines()[0]
    assert "chaski-env/bin/pip install $wheel" in shown
