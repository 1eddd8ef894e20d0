"""Answer prompts with small blocks in files, with two models one after the other, and print the results.

It is for processes with a separate disk: `python asking.py MODEL PROMPTS`. The environment names the store.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import chaski
from chaski.runner.prefix import naming


class _Notes(logging.Handler):
    """Keeps log messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def main(model: str, prompts: list[list[int]]) -> None:
    notes = _Notes()
    logging.getLogger("chaski").addHandler(notes)
    said: list[dict[str, Any]] = []
    with patch.object(naming, "BLOCK", 16):
        for _ in range(2):
            with chaski.load(model, context=256, threads=1) as loaded:
                for prompt in prompts:
                    answer = loaded.generate(prompt, temperature=0, num_predict=8)
                    said.append({"tokens": answer.token_ids, "disk_tokens": answer.done.disk_tokens})
                    assert loaded.engine.tiers is not None
                    assert loaded.engine.tiers.disk is not None
                    loaded.engine.tiers.disk.settle(20)
    files = [path.name for path in Path(os.environ["OLLAMA_MODELS"]).rglob("*") if path.is_file()]
    print(json.dumps({"said": said, "notes": notes.messages, "files": files}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
