"""What computes models in tests: the backend that CHASKI_TEST_BACKEND names, or the reference and the cpu."""

from __future__ import annotations

import os

from chaski import _native

__all__ = ["BACKENDS", "CHOSEN", "FORMS", "USUAL"]

CHOSEN = os.environ.get("CHASKI_TEST_BACKEND")
USUAL = CHOSEN or "cpu"
"""The backend of tests that are about one. It rounds what quantized matrices multiply, as the cpu does."""
BACKENDS = [CHOSEN] if CHOSEN else ["reference", "cpu"]
FORMS = [(CHOSEN, "auto")] if CHOSEN else [("cpu", isa) for isa in _native.isa_names()]
"""What is compared with the reference, with its instructions."""
