"""A backend gets only the options for its devices."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import chaski
from chaski import _native
from chaski.errors import UnsupportedError
from chaski.ml import BACKENDS, BackendOptions, CPUOptions, Options, open_backend
from chaski.ml.reference import ReferenceBackend


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ((), ()),
        ((BackendOptions,), (BackendOptions(flash_attention=False),)),
        ((CPUOptions,), (CPUOptions(threads=2, isa="mine"),)),
        (
            (CPUOptions, BackendOptions),
            (CPUOptions(threads=2, isa="mine"), BackendOptions(flash_attention=False)),
        ),
    ],
)
def test_options_by_device(
    wanted: tuple[type, ...], given: tuple[Options, ...], tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[tuple[Options, ...]] = []

    def opened(*options: Options) -> ReferenceBackend:
        got.append(options)
        return ReferenceBackend()

    module = ModuleType("a_backend")
    module.__dict__.update(OPTIONS=wanted, open=opened)
    monkeypatch.setitem(sys.modules, "a_backend", module)
    monkeypatch.setitem(BACKENDS, "new", "a_backend")
    monkeypatch.setenv("CHASKI_ISA", "mine")
    monkeypatch.setenv("CHASKI_VARIANTS", "first")
    chaski.load(tiny_llama, backend="new", threads=2, flash_attention=False).close()
    assert got == [given]


def test_a_core_that_was_compiled_for_another_processor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "isa_names", list)
    with pytest.raises(UnsupportedError, match="compiled for another processor"):
        open_backend("cpu")
