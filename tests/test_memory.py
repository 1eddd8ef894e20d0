"""Memory is reserved on loading and stays constant; an idle model takes no processor time."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import chaski

DATA = Path(__file__).parent / "data" / "llama"


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_a_thousand_tokens_take_no_more_memory() -> None:
    with chaski.load(DATA / "llama31.f32.gguf", threads=2, context=1100) as model:
        ids = [1, 2, 3]
        model.generate(ids, num_predict=50, temperature=0.7, seed=1)
        reserved, resident = model.memory(), resident_bytes()
        generated = 0
        while generated < 1000:
            generated += len(model.generate(ids, num_predict=250, temperature=0.7, seed=generated).token_ids)
        assert model.memory() == reserved
        assert resident_bytes() - resident < 1 << 20


def test_a_resting_model_takes_no_processor() -> None:
    with chaski.load(DATA / "llama31.f32.gguf", threads=2) as model:
        model.logits([1, 2, 3])
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.02
