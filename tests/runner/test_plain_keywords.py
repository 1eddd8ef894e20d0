"""Values of NumPy, schemas of types, and names of other programs, as keyword arguments of Python calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
import numpy as np
import pytest

import chaski
from chaski.errors import OptionError
from tests.tiny_llama import write_tiny_llama


class Animal(TypedDict):
    name: str
    legs: int


@dataclass
class Place:
    name: str


class Thing(msgspec.Struct):
    name: str


@pytest.fixture(scope="module", params=["here", "worker"])
def model(request: pytest.FixtureRequest, tiny_llama: Path) -> Any:
    kind: Any = chaski.load if request.param == "here" else chaski.Worker
    with kind(tiny_llama, threads=np.int64(1), context=np.int32(256), parallel=np.int64(2)) as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"num_predict": np.int64(4), "seed": np.uint32(3)}, {"num_predict": 4, "seed": 3}),
        (
            {"top_p": np.float32(0.5), "ignore_eos": np.bool_(True)},
            {"top_p": 0.5, "ignore_eos": True},
        ),
        ({"num_predict": np.array(4)}, {"num_predict": 4}),
        ({"stop_token_ids": np.array([5, 6])}, {"stop_token_ids": [5, 6]}),
        ({"stop": np.array(["x", "y"])}, {"stop": ["x", "y"]}),
        ({"logit_bias": {np.int64(70): np.float32(50)}}, {"logit_bias": {70: 50}}),
        ({"choice": [np.str_("x")]}, {"choice": ["x"]}),
    ],
)
def test_numbers_of_numpy_are_numbers(model: Any, options: dict[str, Any], same: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"num_predict": 6, "seed": 1}
    found, expected = model.generate("a", **usual | options), model.generate("a", **usual | same)
    assert found.token_ids == expected.token_ids
    many = model.generate_many(["a"], n=np.int64(2), **usual | options)
    assert many[0].token_ids == expected.token_ids
    assert len(many) == 2


def test_arrays_of_ids_are_prompts(model: Any) -> None:
    ids = model.tokenize("hello")
    expected = model.generate(ids, num_predict=4, temperature=0).token_ids
    assert model.generate(np.array(ids), num_predict=4, temperature=0).token_ids == expected
    several = model.generate_many(np.array([ids, ids]), num_predict=4, temperature=0)
    assert [answer.token_ids for answer in several] == [expected] * 2
    assert model.detokenize(np.array(ids)) == "hello"
    assert model.generate(np.str_("hello"), num_predict=4, temperature=0).token_ids == expected
    with pytest.raises(OptionError, match="must be a text, or a list of token ids"):
        model.generate(np.array([1.5, 2.0]))


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": np.int64(3)}}}


@pytest.mark.parametrize(
    ("kind", "has"),
    [
        (Animal, {"name", "legs"}),
        (Place, {"name"}),
        (Place("here"), {"name"}),
        (Thing, {"name"}),
        (Thing("that"), {"name"}),
    ],
)
def test_a_type_is_its_schema(model: Any, kind: Any, has: set[str]) -> None:
    short = {"logit_bias": {ord('"'): 60}, "temperature": 0, "num_predict": 100}
    assert json.loads(model.generate("a", format=kind, **short).text).keys() == has


def test_types_that_are_no_objects(model: Any) -> None:
    assert model.generate("a", format=Literal["x", "y"]).text in ('"x"', '"y"')
    assert json.loads(model.generate("a", format=bool).text) in (True, False)
    assert len(json.loads(model.generate("a", format={"type": "string", "maxLength": np.int64(2)}).text)) < 3


def test_models_of_pydantic(model: Any) -> None:
    """Both versions, and without that the package is imported."""

    class Second:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {"const": "two"}

    class Adapter:
        def json_schema(self) -> dict[str, Any]:
            return {"const": "adapter"}

    class First:
        __fields__ = ()

        @classmethod
        def schema(cls) -> dict[str, Any]:
            return {"const": "one"}

    for kind, text in (
        (Second, "two"),
        (Second(), "two"),
        (Adapter(), "adapter"),
        (First, "one"),
        (First(), "one"),
    ):
        assert model.generate("a", format=kind).text == f'"{text}"'


def test_a_model_of_the_real_pydantic(model: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    kind = pydantic.create_model("Person", name=(Literal["ann", "bob"], ...), old=(bool, ...))
    found = kind.model_validate_json(model.generate("a", format=kind).text)
    assert found.name in ("ann", "bob")


@pytest.mark.parametrize("kind", [int | object, type("Unknown", (), {}), 3, "xml", lambda: 0])
def test_a_format_without_a_schema(model: Any, kind: Any) -> None:
    with pytest.raises(OptionError, match=r"option format is .* JSON schema"):
        model.generate("a", format=kind)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("max_tokens", "did you mean num_predict"),
        ("max_new_tokens", "did you mean num_predict"),
        ("stop_sequences", "did you mean stop"),
        ("tempreature", "did you mean temperature"),
        ("top_n", "did you mean top_"),
        ("response_format", "did you mean format"),
        ("n_ctx", "it is context of chaski.load"),
        ("num_ctx", "it is context of chaski.load"),
        ("n_threads", "it is threads of chaski.load"),
        ("context", "it is context of chaski.load"),
        ("stream", "stream and stream_chat"),
        ("n", "generate_many and chat_many"),
        ("system", "begin the messages with"),
        ("system_prompt", "begin the messages with"),
        ("enable_thinking", "chat takes think"),
        ("qqqqqqq", "known: adapter, bad_words"),
    ],
)
def test_an_unknown_option_of_an_answer(model: Any, name: str, advice: str) -> None:
    calls = [model.generate, model.stream, model.asynchronous().stream]
    for call in calls:
        with pytest.raises(OptionError, match=f"option '{name}' is unknown: {advice}"):
            call("a", **{name: 1})
    with pytest.raises(OptionError, match=advice):
        model.chat([{"role": "user", "content": "a"}], **{name: 1})
    if name != "n":
        with pytest.raises(OptionError, match=advice):
            model.generate_many(["a"], **{name: 1})


@pytest.mark.parametrize("kind", [chaski.load, chaski.Worker])
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("n_ctx", "did you mean context"),
        ("num_ctx", "did you mean context"),
        ("n_threads", "did you mean threads"),
        ("n_gpu_layers", "did you mean num_gpu"),
        ("paralel", "did you mean parallel"),
        ("temperature", "it is temperature of generate and chat"),
        ("max_tokens", "it is num_predict of generate and chat"),
        ("qqqqqqq", "known: adapters, backend"),
    ],
)
def test_an_unknown_option_of_loading(kind: Any, name: str, advice: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}' is unknown: {advice}"):
        kind("guide", **{name: 1})


@pytest.mark.parametrize("value", [True, "256", 256.0, 0])
def test_a_context_that_is_no_number(tiny_llama: Path, value: Any) -> None:
    with pytest.raises(OptionError, match=r"context = .* must be a whole number of at least 1"):
        chaski.load(tiny_llama, context=value)


@pytest.mark.parametrize("kind", [chaski.load, chaski.Worker])
def test_the_dimensions_of_vectors(tmp_path: Path, kind: Any) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", llama__pooling_type=1)
    with kind(path, threads=1) as model:
        whole, raw = model.embed("x"), model.embed("x", normalize=False)
        size = whole.shape[1]
        cut = model.embed(["x", "y"], dimensions=np.int64(5))
        assert cut.shape == (2, 5)
        np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, rtol=1e-6)
        np.testing.assert_allclose(cut[0], whole[0, :5] / np.linalg.norm(whole[0, :5]), rtol=1e-6)
        np.testing.assert_array_equal(model.embed("x", dimensions=5, normalize=False), raw[:, :5])
        for every in (None, 0, size):
            np.testing.assert_array_equal(model.embed("x", dimensions=every), whole)
        for wrong, message in (
            (size + 1, f"vectors of this model have {size}"),
            (-1, "whole number"),
            (2.5, "whole"),
        ):
            with pytest.raises(OptionError, match=f"dimensions is {wrong}.*{message}"):
                model.embed("x", dimensions=wrong)


@pytest.mark.parametrize("kind", [chaski.load, chaski.Worker])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"projector": 3}, "projector = 3 must be a path or a name"),
        ({"draft": 3}, "draft = 3 must be a path or a name"),
        ({"num_gpu": "all"}, "num_gpu = 'all' must be a whole number"),
        ({"main_gpu": True}, "main_gpu = True must be a whole number"),
        ({"kv_type": 8}, "kv_type = 8 must be the name of a type"),
        ({"flash_attention": "yes"}, "flash_attention = 'yes' must be True or False"),
        ({"tensor_split": 2}, "tensor_split = 2 must be a list of numbers"),
        ({"adapters": 3}, "adapters is 3; it must be a list of paths"),
        ({"adapters": {"one": 3}}, "adapter 'one' is 3; it must be a path"),
    ],
)
def test_values_of_other_types(kind: Any, options: dict[str, Any], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        kind("guide", **options)


@pytest.mark.parametrize("wrong", [3, None, b"guide"])
def test_what_is_no_name_of_a_model(wrong: Any) -> None:
    for kind in (chaski.load, chaski.Worker):
        with pytest.raises(OptionError, match=r"the model is .*; it must be a path"):
            kind(wrong)
    with pytest.raises(OptionError, match=r"the model is .*; it must be a name"):
        chaski.pull(wrong)


def test_texts_and_paths_of_other_types(model: Any) -> None:
    for call, arguments in (
        ("tokenize", (3,)),
        ("tokenize", (b"text",)),
        ("load_adapter", ("name", 3)),
        ("save_state", (3, "text")),
        ("load_state", (3,)),
    ):
        with pytest.raises(OptionError, match=r"is (3|b'text'); it must be a (path|text)"):
            getattr(model, call)(*arguments)
