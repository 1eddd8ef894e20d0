from __future__ import annotations

import logging
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chaski.errors import ModelfileError
from chaski.store.modelfile import Instruction, Modelfile

TEXT = '''
# how the model talks
FROM ./model.gguf
from projector.gguf
  TEMPLATE """{{ if .System }}{{ .System }}
{{ end }}{{ .Prompt }}"""
PARAMETER stop <|a|>
PARAMETER stop "<|b|> "
PARAMETER temperature 0.5
parameter num_ctx 4096
Parameter use_mmap false
PARAMETER seed -1
SYSTEM   You are "quoted" # not a comment
LICENSE "MIT
of several lines"
License Apache
MESSAGE user hello
MESSAGE assistant """hi
there"""
RENDERER qwen3
PARSER qwen3
REQUIRES 0.14.0
'''


def test_all_instructions() -> None:
    found = Modelfile.parse(TEXT)
    assert found.values("from") == ["./model.gguf", "projector.gguf"]
    assert found.last("template") == "{{ if .System }}{{ .System }}\n{{ end }}{{ .Prompt }}"
    assert found.last("system") == 'You are "quoted" # not a comment'
    assert found.values("license") == ["MIT\nof several lines", "Apache"]
    assert found.last("renderer") == found.last("parser") == "qwen3"
    assert found.last("requires") == "0.14.0"
    assert found.last("adapter") is None
    assert found.messages == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi\nthere"},
    ]
    assert found.parameters == {
        "stop": ["<|a|>", "<|b|> "],
        "temperature": 0.5,
        "num_ctx": 4096,
        "use_mmap": False,
        "seed": -1,
    }


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_encodings(encoding: str, newline: str) -> None:
    data = 'FROM x\nSYSTEM """é\nü"""\n'.replace("\n", newline).encode(encoding)
    assert Modelfile.parse(data).last("system") == "é\nü"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('SYSTEM ""', ""),
        ('SYSTEM """"""', ""),
        ("SYSTEM", ""),
        ('SYSTEM """ a """', " a "),
        ('SYSTEM """\na\n"""  ', "\na\n"),
        ('SYSTEM "a" b"', 'a" b'),
        ('SYSTEM "\n\n"', "\n\n"),
        ('SYSTEM """say "hi"\n# no comment\n"""', 'say "hi"\n# no comment\n'),
        ('SYSTEM """a"""b\nc"""', 'a"""b\nc'),
        ("SYSTEM\tx\ty", "x\ty"),
    ],
)
def test_quotes(text: str, value: str) -> None:
    assert Modelfile.parse(f"FROM x\n{text}\nLICENSE y").last("system") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no FROM line"),
        ("SYSTEM hi", "no FROM line"),
        (
            "FROM x\nBUILD y",
            '(line 2): command must be one of "from", "license", "template", "system", "adapter"',
        ),
        ('FROM x\nSYSTEM """a\nb', "(line 2): unexpected EOF"),
        ('FROM x\nSYSTEM "', "(line 2): unexpected EOF"),
        ("FROM", "(line 1): FROM needs a value"),
        (
            "FROM x\n\nMESSAGE robot hi",
            '(line 3): message role must be one of "system", "user", or "assistant"',
        ),
        ("FROM x\nPARAMETER wings 2", "(line 2): unknown parameter 'wings'"),
        (
            "FROM x\nPARAMETER max_tokens 2",
            "(line 2): unknown parameter 'max_tokens'; did you mean num_predict, which OpenAI's API calls",
        ),
        (
            "FROM x\nPARAMETER temprature 2",
            "(line 2): unknown parameter 'temprature'; did you mean temperature",
        ),
        ("FROM x\nPARAMETER engine steam", "(line 2): parameter engine: invalid engine value [steam]"),
        ("FROM x\nPARAMETER", "(line 2): unknown parameter ''"),
        ("FROM x\nPARAMETER seed x", "(line 2): parameter seed: invalid int value [x]"),
        ("FROM x\nPARAMETER top_p x", "(line 2): parameter top_p: invalid float value [x]"),
        ("FROM x\nPARAMETER top_p nan", "(line 2): parameter top_p: invalid float value [nan]"),
        ("FROM x\nPARAMETER use_mmap x", "(line 2): parameter use_mmap: invalid bool value [x]"),
        ("FROM x\nREQUIRES new", "(line 2): requires must be a version such as 0.14.0"),
        (b"FROM \xff\xfe\xfa", "the Modelfile is no text in utf-8"),
    ],
)
def test_faults(text: str | bytes, message: str) -> None:
    with pytest.raises(ModelfileError) as error:
        Modelfile.parse(text)
    assert str(error.value).startswith(message)


def test_old_parameters_are_dropped_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert Modelfile.parse("FROM x\nPARAMETER mirostat 1").parameters == {}
    assert "parameter mirostat is deprecated" in caplog.text


def test_a_file_is_written_as_it_is_read() -> None:
    found = Modelfile.parse(TEXT)
    assert Modelfile.parse(str(found)) == found
    assert str(found).startswith('FROM ./model.gguf\nFROM projector.gguf\nTEMPLATE """{{ if')


@example(['""" \n'])
@given(st.lists(st.text(alphabet='ab"\n #\t', max_size=12), max_size=3))
def test_any_text_comes_back(texts: list[str]) -> None:
    written = Modelfile((Instruction("from", "x"), *(Instruction("license", text) for text in texts)))
    try:
        text = str(written)
    except ModelfileError:
        # Quotes end where a line ends with them, so some texts with both kinds fit into neither.
        assert any(re.search(r'"[ \t]*(\n|$)', each) for each in texts)
        return
    assert Modelfile.parse(text) == written


def test_options_of_other_engines() -> None:
    lines = ("min_tokens 3", "bad_words a", "bad_words b", "ignore_eos true", "dry_base 2", "top_n_sigma 1.5")
    text = "".join(f"\nPARAMETER {line}" for line in lines)
    assert Modelfile.parse(f"FROM x{text}").parameters == {
        "min_tokens": 3,
        "bad_words": ["a", "b"],
        "ignore_eos": True,
        "dry_base": 2.0,
        "top_n_sigma": 1.5,
    }
