"""Measure what a receipt and its verification cost: `python -m benchmarks.receipts MODEL`.

An answer is generated without and with a receipt, and then verified as a whole and by a sample of its steps.
The goal is a verification in at most 15 % of the time of generating 500 tokens on a model of 1B.
"""

from __future__ import annotations

import argparse
import time

import chaski
from chaski.receipts.receipt import Receipt
from chaski.runner.receipts.verify import load_for

PROMPT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=500)
    arguments = parser.parse_args()
    options = {"seed": 1, "ignore_eos": True, "num_predict": arguments.tokens, "draft_num_predict": 0}
    found: list[Receipt | None] = []
    with chaski.load(arguments.model, context=2 * arguments.tokens + PROMPT, prompt_cache=False) as model:
        prompt = list(range(10, 10 + PROMPT))
        model.wait_loaded()
        model.generate(prompt, num_predict=1, receipt=True)  # hashes the file

        def answer(wish: object) -> float:
            began = time.perf_counter()
            found.append(model.generate(prompt, **options, receipt=wish).receipt)  # type: ignore[arg-type]
            return time.perf_counter() - began

        usual = answer(None)
        print(f"generate {arguments.tokens} tokens: {usual:.2f} s")
        for name, wish in (("a receipt", True), ("a receipt of 5 logits", {"top_logits": 5})):
            taken = answer(wish)
            print(f"generate with {name}: {taken:.2f} s, {taken / usual:.0%}")
    for receipt in filter(None, found):
        with load_for(receipt, arguments.model) as verifying:
            verifying.wait_loaded()
            for sample in (None, 16):
                began = time.perf_counter()
                result = chaski.verify(receipt, verifying, sample=sample)
                taken = time.perf_counter() - began
                print(f"verify, {result}: {taken:.2f} s, {taken / usual:.0%} of generating")


if __name__ == "__main__":
    main()
