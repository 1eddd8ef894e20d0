"""Unigram against transformers, llama.cpp and SentencePiece, on the whole corpus and generated strings."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaski.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.token_fixtures import KEY, fixture, unigram_metadata

pytestmark = pytest.mark.oracle
pytest.importorskip("transformers")
pytest.importorskip("xllamacpp")

TEXTS = st.text(
    st.one_of(
        st.sampled_from(
            " \n\t\r'sStTlLrReEvVmMdD0123456789½abcXYZ.,!?_-/"
            "\\$+=漢かカ한ก\u0301\u0323\u200d👍é\u3000ｱﾊﾞ가ﬁ①™ﷺ\x85"
        ),
        st.characters(exclude_categories=("Cs",), exclude_characters="\0"),
    ),
    max_size=40,
)
# SentencePiece and llama.cpp replace the longest sequence; the published tokenizers replace letters together
# with their marks, and no sequences of more than five bytes. These texts contain no such sequence.
SIMPLE = st.text(
    st.characters(
        exclude_categories=("Cs", "Cn", "Mn", "Mc", "Me", "Cc", "Cf", "Zl", "Zp", "Lo", "Lm", "So")
    ),
    max_size=40,
).filter(lambda text: unicodedata.is_normalized("NFC", text))
SETTINGS = settings(
    deadline=None, max_examples=1500, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def ours() -> Callable[[str], list[int]]:
    tokenizer: Tokenizer = load_tokenizer(unigram_metadata())
    return lambda text: tokenizer.encode(text, add_special=False, parse_special=False)


@pytest.fixture(scope="module")
def scripts() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "fixtures"))


@SETTINGS
@given(text=TEXTS)
def test_transformers(text: str, ours: Callable[[str], list[int]], theirs: Any) -> None:
    assert ours(text) == theirs(text)


@pytest.fixture(scope="module")
def theirs(scripts: None) -> Any:
    import make_unigram  # type: ignore[import-not-found]

    metadata = unigram_metadata()
    vocabulary = list(zip(metadata[KEY + "tokens"], metadata[KEY + "scores"], strict=True))
    return make_unigram.published(vocabulary, metadata[KEY + "precompiled_charsmap"].tobytes())


@pytest.fixture(scope="module")
def llama_cpp(
    scripts: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], list[int]]]:
    import gguf
    import llama_cpp_tokens  # type: ignore[import-not-found]

    path = tmp_path_factory.mktemp("oracle") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    metadata = unigram_metadata()
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(metadata[KEY + "tokens"])
    writer.add_token_types(metadata[KEY + "token_type"])
    writer.add_token_scores(metadata[KEY + "scores"])
    writer.add_precompiled_charsmap(metadata[KEY + "precompiled_charsmap"].tobytes())
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    for add, name in ((writer.add_bos_token_id, "bos"), (writer.add_eos_token_id, "eos")):
        add(metadata[f"{KEY}{name}_token_id"])
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(1)
    llama_cpp_tokens.write_tiny_llama(writer, len(metadata[KEY + "tokens"]))
    with llama_cpp_tokens.served(path) as server:
        yield server.encode


@SETTINGS
@given(text=SIMPLE)
def test_llama_cpp(
    text: str, ours: Callable[[str], list[int]], llama_cpp: Callable[[str], list[int]]
) -> None:
    assert ours(text) == llama_cpp(text)


def test_corpus(ours: Callable[[str], list[int]], llama_cpp: Callable[[str], list[int]]) -> None:
    """The results match docs/tokenizers.md."""
    texts = [text for text in fixture("corpus") if "\0" not in text]
    differ = [text for text in texts if ours(text) != llama_cpp(text)]
    assert len(differ) == 6
    assert all(set("\x85\u2028\u2029").intersection(text) for text in differ)
