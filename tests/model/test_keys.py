"""Every key of llama.cpp is read, refused by name, or harmless, whatever the architecture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.kvcache import Causal
from chaski.model.keys import HARMLESS, READ, REFUSED, check_keys
from chaski.model.registry import ARCHITECTURES, build_model
from tests.rewriting import all_tensors

DATA = Path(__file__).parents[1] / "data"
FILES = [*sorted((DATA / "architectures").glob("*.gguf")), *(DATA / "embedders").glob("*.gguf")]
# Keys of encoders, files and tokenizers, which have their own rules.
OTHERS = ("clip.", "diffusion.", "general.", "imatrix.", "split.", "tokenizer.", "adapter.", "xielu.")
# For each key, a value that has an effect.
MEANS = {**dict.fromkeys(REFUSED, 7), "attention.rope_pattern": 0, "classifier.pooling_type": 1}
# Keys that llama.cpp reads without a constant in the package `gguf`.
MORE = {"rope.scale_linear", "rope.scaling.alpha", "attention.value_scale", "attention.output_scale"}


def keys_of(group: type) -> Iterator[str]:
    for name, value in vars(group).items():
        if name.startswith("__"):
            continue
        if isinstance(value, type):
            yield from keys_of(value)
        elif isinstance(value, str) and value.startswith("{arch}."):
            yield value.removeprefix("{arch}.")


def test_every_key_of_llama_cpp_has_its_place() -> None:
    """The list contains the names in `llama-arch.cpp` of October 2026."""
    names = (DATA / "llama_cpp_keys.txt").read_text().split()
    assert len(names) > 160
    assert set(names) <= READ | REFUSED.keys() | HARMLESS.keys()


def test_every_key_has_its_place() -> None:
    known = READ | REFUSED.keys() | HARMLESS.keys()
    gguf = pytest.importorskip("gguf")
    wanted = {key for key in keys_of(gguf.constants.Keys) if "{" not in key and not key.startswith(OTHERS)}
    assert len(wanted) > 100
    assert wanted | MORE <= known
    assert not READ & (REFUSED.keys() | HARMLESS.keys())
    assert REFUSED.keys() & HARMLESS.keys() == set()


def with_key(file: GGUFFile, name: str, value: Any) -> GGUFFile:
    return GGUFFile(file.path, {**file.metadata, f"{file.architecture}.{name}": value}, dict(file.tensors))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_would_change_numbers_is_refused_by_name(path: Path) -> None:
    file = open_gguf(path)
    architecture = ARCHITECTURES[file.architecture]
    check_keys(file, architecture)
    for name, neutral in REFUSED.items():
        if name in architecture.reads:
            continue
        neutral = architecture.fixed.get(name, neutral)
        strange: Any = (
            "relu6" if isinstance(neutral[0], str) else True if neutral[0] is False else MEANS[name]
        )
        for value in (strange, np.array([MEANS[name]] * 2)):
            with pytest.raises(UnsupportedError, match=rf"{file.architecture}\.{name} = .* changes what"):
                build_model(with_key(file, name, value))
        for value in neutral:
            check_keys(with_key(file, name, value), architecture)
        check_keys(with_key(file, name, np.array([neutral[0]] * 3)), architecture)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_an_architecture_computes_anyway_is_not_contradicted(path: Path) -> None:
    file = open_gguf(path)
    architecture = ARCHITECTURES[file.architecture]
    for name, allowed in architecture.fixed.items():
        other = "silu" if isinstance(allowed[0], str) else not allowed[0]
        with pytest.raises(UnsupportedError, match=rf"{file.architecture}\.{name} = .* changes what"):
            build_model(with_key(file, name, other))
        for value in allowed:
            check_keys(with_key(file, name, value), architecture)


def test_only_keys_that_would_be_refused_are_declared_as_read() -> None:
    for name, architecture in ARCHITECTURES.items():
        assert REFUSED.keys() >= set(architecture.reads), name


def test_values_that_mean_the_same_as_another_key() -> None:
    file = open_gguf(DATA / "architectures" / "qwen3.gguf")
    for name, value in (
        ("attention.sliding_window", 256),
        ("attention.key_length_swa", 24),
        ("embedding_length_out", 64),
        ("rope.freq_base_swa", 1000.0),
    ):
        check_keys(with_key(file, name, value), ARCHITECTURES["qwen3"])


def changed(source: Path, target: Path, **metadata: Any) -> Path:
    """Write a model again with other metadata; `__` stands for `.` in keys."""
    file = open_gguf(source)
    entries = {f"{file.architecture}.{key.replace('__', '.')}": value for key, value in metadata.items()}
    write_gguf(target, {**file.metadata, **entries}, all_tensors(file))
    return target


@pytest.mark.parametrize("name", ["granite", "granitemoe"])
def test_granite_without_a_rope(tmp_path: Path, name: str) -> None:
    """llama.cpp reads `finetuned` as a switch. Positions with a scale of zero mean the same."""
    source = DATA / "architectures" / f"{name}.gguf"
    rope = {"rope__scaling__type": "linear", "rope__scaling__factor": 1e30}
    paths = [
        changed(source, tmp_path / "off.gguf", rope__scaling__finetuned=False),
        changed(source, tmp_path / "scaled.gguf", **rope),
        changed(source, tmp_path / "on.gguf", rope__scaling__finetuned=True),
        source,
    ]
    found = []
    for path in paths:
        with chaski.load(path, context=32) as model:
            found.append(np.asarray(model.logits([5, 9, 3, 44, 21, 7])))
    off, scaled, on, plain = found
    np.testing.assert_allclose(off, scaled, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(on, plain)
    assert abs(off - on).max() > 0.01


@pytest.mark.parametrize(("rotates", "is_moved"), [(True, True), (False, False)])
def test_keys_without_a_rope_stay_as_they_are_at_another_position(
    tmp_path: Path, rotates: bool, is_moved: bool
) -> None:
    source = DATA / "architectures" / "granite.gguf"
    path = changed(source, tmp_path / "switched.gguf", rope__scaling__finetuned=rotates)
    with open_gguf(path) as file:
        kinds = build_model(file).layer_kinds()
    assert [isinstance(kind, Causal) and kind.shape.rope is not None for kind in kinds] == [True] * len(kinds)
    assert {kind.shape.rope.frequencies.size > 0 for kind in kinds} == {is_moved}


def test_llama_4_without_chunks_is_refused(tmp_path: Path) -> None:
    source = DATA / "architectures" / "llama4.gguf"
    path = changed(source, tmp_path / "whole.gguf", attention__sliding_window=0)
    with pytest.raises(UnsupportedError, match=r"llama4\.attention\.sliding_window = 0 means"):
        chaski.load(path, context=32)


def logits_of(path: Path) -> np.ndarray[Any, Any]:
    with chaski.load(path, context=32) as model:
        return np.asarray(model.logits([5, 9, 3, 44, 21, 7, 30, 12]))


def test_a_window_for_some_layers_of_phi_3(tmp_path: Path) -> None:
    """The pattern names the layers with a window; without such layers, the model has no windows."""
    source = DATA / "architectures" / "phi3.gguf"
    layers = open_gguf(source).get("phi3.block_count", int)
    window: dict[str, Any] = {"attention__sliding_window": 3}

    def pattern(*flags: bool) -> np.ndarray[Any, Any]:
        return np.array((flags * layers)[:layers])

    whole = logits_of(changed(source, tmp_path / "whole.gguf", attention__sliding_window=0))
    every = logits_of(changed(source, tmp_path / "every.gguf", **window))
    key = "attention__sliding_window_pattern"
    none = logits_of(changed(source, tmp_path / "none.gguf", **window, **{key: pattern(False)}))
    some = logits_of(changed(source, tmp_path / "some.gguf", **window, **{key: pattern(True, False)}))
    np.testing.assert_array_equal(none, whole)
    assert abs(every - whole).max() > 1e-3
    assert abs(some - whole).max() > 1e-3
    assert abs(some - every).max() > 1e-3


def test_gemma_3_without_a_window(tmp_path: Path) -> None:
    """If the key is 0 or missing, all layers have full attention and its rope."""
    source = DATA / "architectures" / "gemma3.gguf"
    file = open_gguf(source)
    zero = changed(source, tmp_path / "zero.gguf", attention__sliding_window=0)
    metadata = {key: value for key, value in file.metadata.items() if not key.endswith("sliding_window")}
    write_gguf(tmp_path / "absent.gguf", metadata, all_tensors(file))
    np.testing.assert_array_equal(logits_of(zero), logits_of(tmp_path / "absent.gguf"))
    assert abs(logits_of(zero) - logits_of(source)).max() > 1e-3


def test_the_temperature_of_mistral_3_without_an_original_length(tmp_path: Path) -> None:
    """Its steps are then as long as the context, and a file must not state another length."""
    source = DATA / "architectures" / "mistral3.gguf"
    file = open_gguf(source)
    metadata = {key: value for key, value in file.metadata.items() if ".rope.scaling." not in key}
    metadata["mistral3.attention.temperature_scale"] = 0.5
    found = []
    for key in ("mistral3.context_length", "mistral3.rope.scaling.original_context_length"):
        path = tmp_path / f"{key}.gguf"
        write_gguf(path, {**metadata, "mistral3.context_length": 64, key: 4}, all_tensors(file))
        with chaski.load(path, context=4) as model:
            found.append(np.asarray(model.logits([5, 9, 3, 44])))
    np.testing.assert_array_equal(*found)
    write_gguf(path, {**metadata, "mistral3.attention.temperature_length": 4}, all_tensors(file))
    with pytest.raises(UnsupportedError, match=r"temperature_length = 4: steps of another length"):
        chaski.load(path, context=4)


@pytest.mark.parametrize("values", [{"sliding_window": 0}, {"sliding_window_pattern": 1}])
def test_modern_bert_without_windows(tmp_path: Path, values: dict[str, Any]) -> None:
    """Every layer then sees the whole text with the base of full layers; a base for windows has no effect."""
    convert(DATA / "checkpoints" / "modern-bert", tmp_path / "plain.gguf", "F32")
    plain = tmp_path / "plain.gguf"
    entries = {f"attention__{key}": value for key, value in values.items()}
    found = []
    for base in (10.0, 1000.0):
        path = changed(plain, tmp_path / f"{base}.gguf", **entries, rope__freq_base_swa=base)
        with chaski.load(path) as model:
            found.append(np.asarray(model.embed(["the other end in the inner tea of the end"])))
    with chaski.load(plain) as model:
        windowed = np.asarray(model.embed(["the other end in the inner tea of the end"]))
    np.testing.assert_array_equal(*found)
    assert abs(found[0] - windowed).max() > 1e-3


def test_granite_that_adds_embeddings_again_is_refused(tmp_path: Path) -> None:
    """Image parts do not affect text; the first part, the text's own, affects later layers."""
    source = DATA / "architectures" / "granite.gguf"
    layers = open_gguf(source).metadata["granite.block_count"]
    assert isinstance(layers, int)
    mapping = np.array([0, *range(1, layers)], np.int32)
    path = changed(source, tmp_path / "images.gguf", deepstack_mapping=mapping)
    np.testing.assert_array_equal(logits_of(path), logits_of(source))
    path = changed(source, tmp_path / "again.gguf", deepstack_mapping=np.zeros(layers, np.int32))
    with pytest.raises(UnsupportedError, match=r"granite\.deepstack_mapping adds token embeddings"):
        chaski.load(path, context=32)


@pytest.mark.parametrize("name", ["gemma3", "gemma3n", "gemma4"])
def test_a_factor_of_attention_holds_for_all_layers(name: str) -> None:
    """llama.cpp multiplies queries and keys of layers with a window by it, too."""
    file = with_key(open_gguf(DATA / "architectures" / f"{name}.gguf"), "rope.scaling.attn_factor", 1.5)
    model = build_model(file)
    ropes = {kind.shape.rope for kind in model.layer_kinds() if isinstance(kind, Causal)}
    assert len(ropes) > 1
    assert {None if rope is None else rope.magnitude for rope in ropes} == {1.5}
