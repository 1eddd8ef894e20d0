"""The backends of tests: the one that CHASKI_TEST_BACKEND names, or the reference and the cpu."""

from __future__ import annotations

import os

import pytest

from chaski import _native

__all__ = [
    "BACKENDS",
    "CHOSEN",
    "FORMS",
    "HAS_PLAIN_ATTENTION",
    "USUAL",
    "about_plain_attention",
    "about_the_processor",
]

CHOSEN = os.environ.get("CHASKI_TEST_BACKEND")
USUAL = CHOSEN or "cpu"
"""The backend of tests that need only one. It rounds activations for quantized matrices, as the cpu does."""
BACKENDS = [CHOSEN] if CHOSEN else ["reference", "cpu"]
FORMS = [(CHOSEN, "auto")] if CHOSEN else [("cpu", isa) for isa in _native.isa_names()]
"""The backend that is compared with the reference, with its instruction set."""
HAS_PLAIN_ATTENTION = CHOSEN in (None, "cpu", "reference")
"""Whether the backend supports attention that is not fused."""
about_plain_attention = pytest.mark.skipif(not HAS_PLAIN_ATTENTION, reason="it has fused attention only")
about_the_processor = pytest.mark.skipif(
    CHOSEN not in (None, "cpu"), reason="this is about the weights and the memory of the processor"
)
"""Marks tests that do not concern other backends."""
