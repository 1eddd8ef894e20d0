"""What people paste where a model is named: names, commands and links."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaski.errors import OptionError
from chaski.names import ModelName
from chaski.pasted import pasted_name

LLAMA = "bartowski/Llama-3.2-3B-Instruct-GGUF"
HUB = f"https://huggingface.co/{LLAMA}"
FILE = "Llama-3.2-3B-Instruct-Q4_K_M.gguf"

NAMES = {
    # Names stay as they are.
    "llama3.2": "llama3.2",
    "me/model:tag": "me/model:tag",
    "huggingface.co/a/b:Q8_0": "huggingface.co/a/b:Q8_0",
    "http://localhost:5000/library/x:1": "http://localhost:5000/library/x:1",
    "./model.gguf": "./model.gguf",
    "~/my models/x.gguf": "~/my models/x.gguf",
    # Spaces, quotes, prompts and invisible characters around them.
    "  llama3.2:1b\n": "llama3.2:1b",
    '"llama3.2:1b"': "llama3.2:1b",
    "“llama3.2:1b”": "llama3.2:1b",
    "`llama3.2:1b`": "llama3.2:1b",
    "\u200bllama3.2:1b\u00a0": "llama3.2:1b",
    "<https://ollama.com/library/llama3.2>": "llama3.2",
    # Commands.
    "ollama run llama3.2": "llama3.2",
    "ollama pull llama3.2:1b": "llama3.2:1b",
    "$ ollama run llama3.2": "llama3.2",
    "# ollama run llama3.2": "llama3.2",
    "PS C:\\Users\\me> ollama run llama3.2": "llama3.2",
    "me@host:~$ ollama run llama3.2": "llama3.2",
    "sudo -u ollama /usr/bin/ollama run llama3.2": "llama3.2",
    "OLLAMA_HOST=0.0.0.0 ollama pull llama3.2": "llama3.2",
    "docker exec -it ollama ollama run llama3.2": "llama3.2",
    'ollama run llama3.2 "Why is the sky blue?"': "llama3.2",
    "ollama run --verbose --keepalive 5m llama3.2": "llama3.2",
    "ollama run --format=json llama3.2": "llama3.2",
    "chaski run qwen3:8b": "qwen3:8b",
    "python -m chaski pull qwen3:8b": "qwen3:8b",
    "FROM llama3.2": "llama3.2",
    "pull llama3.2": "llama3.2",
    f"ollama run hf.co/{LLAMA}:Q4_K_M": f"hf.co/{LLAMA}:Q4_K_M",
    f"docker model run hf.co/{LLAMA}:Q4_K_M": f"hf.co/{LLAMA}:Q4_K_M",
    f"llama-server -hf {LLAMA}:Q4_K_M": f"hf.co/{LLAMA}:Q4_K_M",
    f"llama-server -hf {LLAMA} --jinja -c 0": f"hf.co/{LLAMA}",
    f"llama-cli --hf-repo={LLAMA} --hf-file={FILE}": f"hf.co/{LLAMA}:Q4_K_M",
    f"hf download {LLAMA} {FILE} --local-dir .": f"hf.co/{LLAMA}:Q4_K_M",
    f'huggingface-cli download {LLAMA} --include "*Q5_K_S*"': f"hf.co/{LLAMA}:Q5_K_S",
    f"hf download {LLAMA} README.md": f"hf.co/{LLAMA}",
    f"git clone {HUB}.git": f"hf.co/{LLAMA}",
    f"wget {HUB}/resolve/main/{FILE}": f"hf.co/{LLAMA}:Q4_K_M",
    # Links of Hugging Face.
    HUB: f"hf.co/{LLAMA}",
    f"{HUB}/": f"hf.co/{LLAMA}",
    f"{HUB}/tree/main": f"hf.co/{LLAMA}",
    f"{HUB}/discussions/3#x": f"hf.co/{LLAMA}",
    f"{HUB}?local-app=llama.cpp": f"hf.co/{LLAMA}",
    f"{HUB}/blob/main/{FILE}": f"hf.co/{LLAMA}:Q4_K_M",
    f"{HUB}/resolve/main/{FILE}?download=true": f"hf.co/{LLAMA}:Q4_K_M",
    f"{HUB}?show_file_info={FILE}": f"hf.co/{LLAMA}:Q4_K_M",
    f"{HUB}/blob/main/README.md": f"hf.co/{LLAMA}",
    f"{HUB}/blob/main/mmproj-F16.gguf": f"hf.co/{LLAMA}",
    f"see {HUB}, please.": f"hf.co/{LLAMA}",
    f"[model]({HUB})": f"hf.co/{LLAMA}",
    f"hf.co/{LLAMA}/blob/main/{FILE}": f"hf.co/{LLAMA}:Q4_K_M",
    f"www.huggingface.co/{LLAMA}": f"hf.co/{LLAMA}",
    # A file with another name than its repository, files in parts, and folders of a quantization.
    f"{HUB}/blob/main/other-Q5_K_M.gguf": f"hf.co/{LLAMA}:other-Q5_K_M.gguf",
    f"{HUB}/blob/main/UD-Q2_K_XL/Llama-UD-Q2_K_XL-00001-of-00002.gguf": f"hf.co/{LLAMA}:UD-Q2_K_XL",
    f"{HUB}/tree/main/Q4_K_M": f"hf.co/{LLAMA}:Q4_K_M",
    # Links of ollama.com.
    "https://ollama.com/library/llama3.2": "llama3.2",
    "https://ollama.com/library/llama3.2:1b": "llama3.2:1b",
    "https://www.ollama.com/library/llama3.2/tags": "llama3.2",
    "ollama.com/library/llama3.2:1b": "llama3.2:1b",
    "https://ollama.com/me/model:tag": "me/model:tag",
}  # fmt: skip


@pytest.mark.parametrize(("text", "name"), NAMES.items())
def test_pasted_names(text: str, name: str) -> None:
    assert pasted_name(text) == name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no model is named"),
        (" \n", "no model is named"),
        ("a model that can see", "names no model; give a name such as llama3.2:3b"),
        ("ollama run", "names no model"),
        (f"{HUB}/blob/main/{'_Q1' * 20_000}!.gguf", "a text of 60"),
        ("vllm serve Qwen/Qwen3-8B", "names no model"),
        ("https://huggingface.co/models?search=gguf", "the link of a model is https://huggingface.co/USER"),
        ("https://huggingface.co/datasets/a/b", "the link of a model"),
        ("https://huggingface.co/bartowski", "the link of a model"),
        (f"{HUB}/blob/main/model-00001-of-00002.safetensors", "is not a GGUF file"),
        (f"{HUB}/tree/0123abc", "only the version main is pulled"),
        ("https://ollama.com/search?q=vision", "the link of a model is https://ollama.com/library/NAME"),
        ("https://ollama.com/blog/x", "the link of a model"),
        ("https://github.com/ggml-org/llama.cpp", "not a model of a registry"),
        ("https://example.com/model.gguf", "not a model of a registry"),
    ],
)
def test_texts_that_name_no_model(text: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        pasted_name(text)


@given(st.text(alphabet="ab/:.-_ $'\"`hf.cogu?=&%\n", max_size=60) | st.text(max_size=30))
def test_any_text_gives_a_name_or_an_error(text: str) -> None:
    with suppress(OptionError):
        assert pasted_name(text)


@given(
    st.from_regex(
        r"[a-z0-9][a-z0-9_-]{0,8}(/[a-z0-9][a-z0-9_.-]{0,8})?(:[a-z0-9][a-z0-9_.-]{0,8})?", fullmatch=True
    )
)
def test_names_are_their_own(name: str) -> None:
    assert pasted_name(name) == name
    assert ModelName.parse(name) == ModelName.parse(pasted_name(f"ollama run {name}"))
