"""The Modelfile of a stored model, and its parameters as lines."""

from __future__ import annotations

from pathlib import Path

from chaski.names import ModelName
from chaski.store.describe import modelfile_of, parameter_lines
from chaski.store.model import StoredConfig, StoredModel
from chaski.store.modelfile import Modelfile

WHOLE = StoredModel(
    name=ModelName.parse("mine"),
    path=Path("/blobs/weights"),
    projectors=(Path("/blobs/eye"), Path("/blobs/ear")),
    adapters=(Path("/blobs/change"),),
    draft=Path("/blobs/small"),
    config=StoredConfig(renderer="r", parser="p", requires="0.14.0"),
    template="{{ .Prompt }}\nend ",
    system="",
    parameters={"temperature": 0.5, "stop": ["<b>", "\u00e9 "], "num_ctx": 4096, "use_mmap": True},
    messages=({"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho\nho"}),
    licenses=("MIT", "Apache"),
)


def test_a_modelfile_tells_all_of_a_model() -> None:
    assert str(modelfile_of(WHOLE)) == (
        "FROM /blobs/weights\n"
        "FROM /blobs/eye\n"
        "FROM /blobs/ear\n"
        "ADAPTER /blobs/change\n"
        "DRAFT /blobs/small\n"
        'TEMPLATE """{{ .Prompt }}\nend """\n'
        'SYSTEM """"""\n'
        "RENDERER r\n"
        "PARSER p\n"
        "REQUIRES 0.14.0\n"
        "PARAMETER num_ctx 4096\n"
        "PARAMETER stop <b>\n"
        'PARAMETER stop """\u00e9 """\n'
        "PARAMETER temperature 0.5\n"
        "PARAMETER use_mmap true\n"
        "MESSAGE user hi\n"
        'MESSAGE assistant """ho\nho"""\n'
        "LICENSE MIT\n"
        "LICENSE Apache\n"
    )
    found = Modelfile.parse(str(modelfile_of(WHOLE)))
    assert found == modelfile_of(WHOLE)
    assert found.parameters == WHOLE.parameters
    assert found.messages == [*WHOLE.messages]


def test_a_plain_file_has_no_settings() -> None:
    model = StoredModel(None, Path("/model.gguf"))
    assert str(modelfile_of(model)) == "FROM /model.gguf\n"
    assert list(parameter_lines(model)) == []


def test_parameters_are_lines_of_json() -> None:
    assert list(parameter_lines(WHOLE)) == [
        ("num_ctx", "4096"),
        ("stop", '"<b>"'),
        ("stop", '"\u00e9 "'),
        ("temperature", "0.5"),
        ("use_mmap", "true"),
    ]
