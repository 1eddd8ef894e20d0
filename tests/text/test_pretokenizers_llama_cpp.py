"""Every pre-tokenizer against llama.cpp itself, on the whole corpus and on generated strings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaski.text.tokenizer.pretokenizers import PRETOKENIZERS
from tests.text.token_fixtures import fixture, text_metadata, tokenizer

pytestmark = pytest.mark.oracle
pytest.importorskip("xllamacpp")
pytest.importorskip("gguf")

# Names for which llama.cpp only approximates the published tokenizer; docs/tokenizers.md describes how.
NEAR = {
    **dict.fromkeys(
        ("command-r", "modern-bert", "mpt", "olmo", "qwen2", "qwen35"), "it does not compose text"
    ),
    **dict.fromkeys(
        ("gpt-4o", "granite-embed-multi-97m", "kanana2", "llama4", "minimax-m2", "talkie"), "long s"
    ),
    **dict.fromkeys(("afmoe", "cohere2moe", "kimi-k2", "tiny_aya", "youtu"), "case of letters, digits"),
    "deepseek-llm": "digits",
}


@pytest.fixture(scope="module")
def oracle():
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "fixtures"))
    import llama_cpp_tokens  # type: ignore[import-not-found]

    return llama_cpp_tokens


# Without unassigned characters, which differ between versions of Unicode.
TEXTS = st.text(
    st.one_of(
        st.sampled_from(
            " \n\t\r'sStTlLrReEvVmMdD0123456789½٣abcXYZ.,!?_-/\\$+<=>^~|`()[]{}漢かカ한ก\u0301\u200d👍é"
        ),
        st.characters(exclude_categories=("Cs", "Cn"), exclude_characters="\0\u2581ſ"),
    ),
    max_size=40,
)


@pytest.mark.parametrize("name", sorted(PRETOKENIZERS.keys() - NEAR.keys()))
def test_equal_ids(name, oracle, tmp_path):
    is_text = not PRETOKENIZERS[name].byte_level
    metadata = text_metadata(name) if is_text else None
    vocabulary = fixture("text_bpe" if is_text else "byte_level")
    types = list(vocabulary["types"]) if metadata else [1] * len(vocabulary["tokens"])
    path = tmp_path / "model.gguf"
    oracle.text_model(path, name, vocabulary["tokens"], types, vocabulary["merges"])
    ours = tokenizer(name)
    with oracle.served(path) as theirs:
        for text in fixture("corpus"):
            if not is_text or "\0" not in text:
                assert ours.encode(text, False, False) == theirs.encode(text), ascii(text)

        @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(TEXTS)
        def check(text):
            assert ours.encode(text, False, False) == theirs.encode(text)

        check()
