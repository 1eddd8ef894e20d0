"""A server whose replies are compared with the reference, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running
from tests.server.shapes import faults
from tests.server.thinker import TEMPLATE
from tests.tiny_llama import write_tiny_llama

RECORDED = json.loads((Path(__file__).parent / "data/recorded.json").read_text())
MESSAGES = [{"role": "user", "content": "x"}]
PIECES = (
    "<think>",
    "hm",
    "</think>",
    "Wait. ",
    "So.",
    '<tool_call>{"name": "weather", "arguments": {"city": "x"}}',
)


@contextmanager
def replying(folder: Path) -> Iterator[Running]:
    """Run a server with a model that thinks, writes text and calls a tool, and one that embeds."""
    script = Script(pieces=(*PIECES, "</tool_call>"))
    for name, options in (("talker", {"chat_template": TEMPLATE}), ("vectors", {"llama__pooling_type": 1})):
        file = write_tiny_llama(folder / f"{name}.gguf", **options)
        for _ in create(Store(folder), ModelName.parse(name), Recipe(sources=[file], system="Be kind.")):
            pass
    with running(Settings(address=SOMEWHERE), folder, script.open) as found:
        yield found


def check(shape: str, value: Any) -> None:
    """Compare a reply with all fields of the reference, and with the examples of its documentation."""
    assert list(faults(shape, value)) == []
    for recorded in RECORDED.get(shape, ()):
        found = [fault for fault in faults(recorded["fields"], value) if not fault.endswith("is too much")]
        assert found == [], recorded["source"]
        shown = [name.strip("?") for name in recorded["fields"]]
        names = [name for name in shown if name not in recorded.get("unordered", ())]
        assert [name for name in value if name in names] == [name for name in names if name in value]
