"""Images in the real llama.cpp, against plain xllamacpp: LLaVA's tiny checkpoint, text and projector."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.convert.convert import convert
from chaski.errors import ImageError
from chaski.runner.channels.worker.client import Worker
from tests.image.pictures import png

pytestmark = pytest.mark.oracle
pytest.importorskip("xllamacpp")

DATA = Path(__file__).parents[3] / "data" / "llava"
ONE, OTHER = png(20, 33), png(37, 53)
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 12, "repeat_penalty": 1.0, "ignore_eos": True}
ALONE = """
import json, sys, xllamacpp
text, projector, *urls = sys.argv[1:]
parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.mmproj.path = text, projector
parameters.n_ctx, parameters.n_parallel, parameters.verbosity = 256, 1, 1
parameters.warmup = parameters.ui = False
parameters.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
server = xllamacpp.Server(parameters)
for url in urls:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": " the other"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 12, "temperature": 0}
    answer = server.handle_chat_completions({**body, "ignore_eos": True, "logprobs": True, "stream": False})
    print(json.dumps([token["id"] for token in answer["choices"][0]["logprobs"]["content"]]))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("llava")
    convert(DATA, folder / "text.gguf", "F32", projector=folder / "mmproj.gguf")
    return folder / "text.gguf", folder / "mmproj.gguf"


@pytest.fixture(scope="module")
def worker(files: tuple[Path, Path]) -> Iterator[Worker]:
    text, projector = files
    with Worker(text, projector=str(projector), engine="llama.cpp", threads=1, parallel=2) as opened:
        yield opened


def test_answers_are_those_of_xllamacpp(worker: Worker, files: tuple[Path, Path]) -> None:
    urls = [f"data:image/png;base64,{b64encode(data).decode()}" for data in (ONE, OTHER)]
    command = [sys.executable, "-c", ALONE, *map(str, files), *urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    wanted = [json.loads(line) for line in done.stdout.splitlines()]
    found = [worker.generate(" the other", [image], logprobs=True, **GREEDY) for image in (ONE, OTHER)]
    assert [[each.token_id for each in answer.logprobs] for answer in found] == wanted
    assert wanted[0] != wanted[1], "the model sees a difference"


def test_prompts_with_images_are_taken_over(worker: Worker) -> None:
    prompt = "an [img-0] and [img-1] other"
    first, again, swapped = (
        worker.generate(prompt, images, **GREEDY) for images in ([ONE, OTHER], [ONE, OTHER], [OTHER, ONE])
    )
    assert again.token_ids == first.token_ids != swapped.token_ids
    assert again.done.cached_tokens == again.done.prompt_tokens - 1
    assert swapped.done.cached_tokens < 6
    with pytest.raises(ImageError):
        worker.generate(prompt, [ONE, b"GIF89a"])
    assert worker.generate(prompt, [ONE, OTHER], **GREEDY).token_ids == first.token_ids


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (3, 2)])
def test_images_of_odd_sizes(worker: Worker, size: tuple[int, int]) -> None:
    answer = worker.generate("[img-0] the", [png(*size)], **GREEDY)
    assert answer.done.generated_tokens == 12


def test_an_answer_ends_at_a_full_context(worker: Worker) -> None:
    options = {**GREEDY, "num_predict": 1000}
    done = worker.generate("[img-0] the", [ONE], **options).done
    assert (done.reason, done.shifted_tokens) == ("length", 0)
    assert done.prompt_tokens + done.generated_tokens <= 257
