"""Impossible numbers in `config.json`: refused quickly and with little memory, for every family."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.convert.checkpoints import DATA

_MEGABYTES = 300
_PROGRAM = """
import json, resource, shutil, sys, tempfile, time
from pathlib import Path
from chaski.convert.convert import convert
from chaski.errors import ChaskiError

HOSTILE = (2**40, 2**31 - 1, 0, -7, 1e308)
EACH = int(sys.argv[3])

class Begun(Exception):
    pass

def stop(done, total):
    raise Begun

def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path

def outcome(folder):
    start = time.process_time()
    try:
        convert(folder, folder / "out.gguf", "F16", stop)
        text = "ok"
    except (Begun, ChaskiError):
        text = "ok"
    except BaseException as error:
        text = repr(error)
    seconds = time.process_time() - start
    return text if seconds < 5 else f"{text} after {seconds:.1f} s"

limit, data = int(sys.argv[1]) << 20, Path(sys.argv[2])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
found = {}
for source in sorted(path.parent for path in data.glob("*/config.json")):
    with tempfile.TemporaryDirectory() as top:
        folder = Path(shutil.copytree(source, Path(top) / source.name))
        config = folder / "config.json"
        text = config.read_text()
        for place_number, path in enumerate(leaves(json.loads(text))):
            for index in range(EACH):
                number = HOSTILE[(EACH * place_number + index) % len(HOSTILE)]
                values = json.loads(text)
                place = values
                for key in path[:-1]:
                    place = place[key]
                place[path[-1]] = number
                config.write_text(json.dumps(values))
                found[f"{source.name}: {'.'.join(path)} = {number}"] = outcome(folder)
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.parametrize("each", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_numbers_that_cannot_be(each: int) -> None:
    """It changes each number of each fixture in turn; a conversion that begins has accepted it.

    Several of five replacement numbers are tried in turn.
    """
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(_MEGABYTES), str(DATA), str(each)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert len(found) > 500
    assert {case: text for case, text in found.items() if text != "ok"} == {}
