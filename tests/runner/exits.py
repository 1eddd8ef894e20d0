"""End the interpreter while daemon threads compute: `python -m tests.runner.exits WHAT MODEL`."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import chaski
from chaski import _native


def begin(work: Callable[[], Any]) -> None:
    """Repeat a call in daemon threads."""

    def repeat() -> None:
        while True:
            work()

    for _ in range(3):
        threading.Thread(target=repeat, daemon=True).start()
    time.sleep(0.2)


def main(what: str, path: str) -> None:
    if what == "load":
        begin(lambda: chaski.load(path, context=128))
        return
    model = chaski.load(path, context=128, threads=2)
    if what == "generate":
        begin(lambda: model.generate("the", num_predict=30))
    elif what == "logits":
        begin(lambda: model.logits(list(range(5, 100))))
    elif what == "constrained":
        begin(lambda: model.generate("the", num_predict=5, format={"type": "string", "maxLength": 3}))
    elif what == "native":
        begin(lambda: _native.read_bandwidth(_native.ThreadPool(2), "auto", 1 << 24))
    elif what == "stream":
        next(model.stream("the", num_predict=30))
        begin(lambda: next(model.stream("the", num_predict=30)))
    elif what == "exit in a thread":
        begin(lambda: (model.generate("the", num_predict=5), sys.exit(0)))
    elif what == "closed":
        begin(lambda: model.generate("the", num_predict=30))
        threading.Thread(target=model.close).start()
    elif what == "at exit":
        atexit.register(lambda: print(len(model.generate("the", num_predict=3, ignore_eos=True).token_ids)))
        begin(lambda: model.generate("the", num_predict=30))


if __name__ == "__main__":
    main(*sys.argv[1:])
