"""Registers the emulated device in every process that tests start, since PYTHONPATH has this folder."""

import tests.cuda.emulated  # noqa: F401
