"""Makes the emulated device known to every process that tests start: a folder of PYTHONPATH has this."""

import tests.cuda.emulated  # noqa: F401
