"""Print greedy texts of plain xllamacpp as JSON, for a prompt, a number of tokens, and files."""

from __future__ import annotations

import json
import sys

import xllamacpp

__all__: list[str] = []


def answer(path: str, prompt: str, count: int) -> str:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx, parameters.n_parallel = 256, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.warmup = parameters.ui = False
    parameters.verbosity = 1
    body = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True, "stream": False}
    return str(xllamacpp.Server(parameters).handle_completions(body)["choices"][0]["text"])


if __name__ == "__main__":
    prompt, count, *paths = sys.argv[1:]
    print(json.dumps([answer(path, prompt, int(count)) for path in paths]))
