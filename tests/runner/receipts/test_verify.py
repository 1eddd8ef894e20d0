"""Verification of receipts: true ones on every backend, and false ones at the field or step that is false."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

import chaski
from chaski import _native
from chaski.chat.answer import Answer
from chaski.errors import AdapterNotFoundError, OptionError, ReceiptError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.quant import QuantType
from chaski.receipts.chain import chain_of, top_bytes
from chaski.receipts.receipt import Receipt
from chaski.receipts.signing import server_key, shown_key, signed
from chaski.runner.engine.engine import Engine
from chaski.runner.llm import LLM
from chaski.runner.results import outputs_of
from chaski.store.store import Store
from tests.adapters import adapted_names, random_adapter
from tests.tiny_llama import write_tiny_llama

PROMPT = [262, *range(40, 75)]
ENDLESS = {"ignore_eos": True, "num_predict": 40}
THOUGHT = {"opening": "<think>", "closing": "</think>", "is_open": True}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "drawn": {},
    "greedy": {"temperature": 0},
    "whole": {"top_k": 0, "typical_p": 0.8, "min_p": 0.01},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.01, "temperature": 1.5},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    "dry": {"dry_multiplier": 1.0, "temperature": 0},
    "bias": {"logit_bias": {50: 20.0, 60: 19.5}, "bad_words": ["the"]},
    "grammar": {"regex": "[a-f]{30,60}", "ignore_eos": False},
    "stop": {"regex": "[a-f]{60}", "stop": ["a"], "min_tokens": 5, "ignore_eos": False},
    "stop token": {"stop_token_ids": list(range(70, 110)), "temperature": 1.5},
    "thoughts": {"format_thought": THOUGHT, "reasoning_budget": 6},
    "logits": {"receipt": {"top_logits": 5}},
    "salted": {"cache_salt": "a secret", "no_store": True, "logprobs": True},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("receipts") / "tiny.gguf", matrices=QuantType.Q8_0)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LLM]:
    with chaski.load(path, parallel=2, kv_type="i16") as loaded:
        yield loaded


def answer(model: LLM, **options: Any) -> Answer:
    """Return an answer with a receipt."""
    return model.generate(PROMPT, **{"seed": 5, "receipt": True, **ENDLESS, **options})


def receipt_of(model: LLM, **options: Any) -> Receipt:
    found = answer(model, **options).receipt
    assert found is not None
    return found


def fields(receipt: Receipt) -> Any:
    """Return a receipt as parsed JSON, to be changed."""
    return json.loads(receipt.text())


def rechained(changed: Any) -> Receipt:
    """Return a changed receipt with the chain that belongs to it, as a forger would make it."""
    found = Receipt.of(changed)
    changed["chain"]["last"] = chain_of(found, 0, [b""] * len(found.output)).last
    return Receipt.of(changed)


@pytest.mark.parametrize("name", WAYS)
def test_answers_of_all_kinds_are_the_same(model: LLM, name: str) -> None:
    found = answer(model, **WAYS[name])
    receipt = found.receipt
    assert receipt is not None
    assert len(receipt.output) == found.done.generated_tokens > 2
    assert receipt.output[: len(found.token_ids)] == found.token_ids
    assert "secret" not in receipt.text()
    result = chaski.verify(receipt, model)
    assert str(result) == f"same: {len(receipt.output)} of {len(receipt.output)} steps compared"
    assert chaski.verify(found, model, sample=3).num_checked == 3


def test_no_receipt_unless_it_is_wanted(model: LLM) -> None:
    for wish in (None, False):
        assert answer(model, receipt=wish).receipt is None
    assert model.generate("a", num_predict=2).receipt is None
    with pytest.raises(ReceiptError, match="has no receipt"):
        chaski.verify(answer(model, receipt=False), model)


def test_batched_and_speculated_answers_have_the_same_receipt(model: LLM) -> None:
    alone = receipt_of(model, temperature=0)
    for answers in (
        model.generate_many([PROMPT, [262, 50], PROMPT], seed=5, receipt=True, temperature=0, **ENDLESS),
        [answer(model, temperature=0, draft_num_predict=0)],
    ):
        assert answers[0].receipt == answers[-1].receipt == alone


@pytest.mark.parametrize("num_predict", [0, 1])
def test_short_answers(model: LLM, num_predict: int) -> None:
    receipt = receipt_of(model, num_predict=num_predict)
    assert len(receipt.output) == num_predict
    assert chaski.verify(receipt, model).is_same


def test_a_full_context_ends_the_answer(model: LLM) -> None:
    receipt = receipt_of(model, num_predict=-1)
    assert len(PROMPT) + len(receipt.output) == model.context + 1
    assert chaski.verify(receipt, model).is_same


def test_conversations(model: LLM) -> None:
    found = model.chat([{"role": "user", "content": "hi"}], num_predict=20, receipt=True)
    assert chaski.verify(found, model).is_same
    streamed = list(model.stream_chat([{"role": "user", "content": "hi"}], num_predict=20, receipt=True))
    assert isinstance(streamed[-1], chaski.Done)
    assert streamed[-1].receipt is not None
    assert chaski.verify(streamed[-1].receipt, model).is_same


def test_a_changed_token_fails_at_its_step(model: LLM) -> None:
    receipt = receipt_of(model)
    for step in (0, 17, 39):
        changed = fields(receipt)
        changed["output"][step] = (receipt.output[step] + 1) % 250
        last, at_step = chaski.verify(changed, model).differences
        assert last.place == "chain.last"
        assert at_step.place == f"step {step}"
        assert at_step.receipt == f"token {changed['output'][step]}"
        assert at_step.found == f"token {receipt.output[step]}"
        (alone,) = chaski.verify(rechained(changed), model).differences
        assert alone == at_step


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 1.7), ("top_k", 2), ("repeat_penalty", 3.0), ("seed", "6"), ("logit_bias", {"50": 30})],
)
def test_a_changed_option_fails_where_it_matters(model: LLM, name: str, value: Any) -> None:
    receipt = receipt_of(model)
    changed = fields(receipt)
    (changed if name == "seed" else changed["options"])[name] = value
    assert chaski.verify(changed, model).differences[0].place == "chain.last"
    (difference,) = chaski.verify(rechained(changed), model).differences
    # The first step that differs is that of the answer with this option.
    given = {name: int(value) if name == "seed" else value}
    other = receipt_of(model, **given).output
    step = next(
        index for index, pair in enumerate(zip(receipt.output, other, strict=True)) if len({*pair}) > 1
    )
    assert difference.place == f"step {step}"
    assert (difference.receipt, difference.found) == (f"token {receipt.output[step]}", f"token {other[step]}")


def test_a_changed_end_fails(model: LLM) -> None:
    receipt = receipt_of(model)
    longer, shorter, named = fields(receipt), fields(receipt), fields(receipt)
    longer["options"]["num_predict"] = 41
    shorter["options"]["num_predict"] = 39
    named["end"] = {"reason": "stop", "stop": "x"}
    for changed in (longer, shorter, named):
        (difference,) = chaski.verify(rechained(changed), model).differences
        assert difference.place == "end"
    cut = fields(receipt)
    del cut["output"][20:]
    assert [each.place for each in chaski.verify(rechained(cut), model).differences] == ["end"]


@pytest.mark.parametrize("place", ["model.files[0]", "model.kv_type", "model.architecture", "rule"])
def test_a_changed_field_fails_without_computing(model: LLM, place: str) -> None:
    changed = fields(receipt_of(model))
    owner, _, name = place.rpartition(".")
    if place == "model.files[0]":
        changed["model"]["files"] = ["0" * 64]
    else:
        (changed[owner] if owner else changed)[name] = "other"
    result = chaski.verify(rechained(changed), model)
    assert [each.place for each in result.differences] == [place]
    assert result.num_checked == 0


def test_a_changed_prompt_fails(model: LLM) -> None:
    receipt = receipt_of(model)
    changed = fields(receipt)
    changed["prompt"]["tokens"][3] += 1
    assert chaski.verify(changed, model).differences[0].place == "prompt.digest"


def test_a_changed_weight_fails_at_the_step_that_it_changes(model: LLM, path: Path, tmp_path: Path) -> None:
    """The server claims the digest of one file, and computes with another one, which differs in one bit."""
    data = bytearray(path.read_bytes())
    with open_gguf(path) as file:
        info = file.tensors["output.weight"]
        place = data.find(info.data.tobytes())
    data[place + 34 * 2 * 70 + 2] ^= 0x40  # a weight of token 70
    other = tmp_path / "other.gguf"
    other.write_bytes(data)
    with chaski.load(other, kv_type="i16") as damaged:
        receipt = receipt_of(damaged, receipt={"top_logits": 20}, top_k=20, temperature=2.0)
        logits = damaged.logits([*PROMPT, *receipt.output[:-1]])[len(PROMPT) - 1 :]
    result = chaski.verify(receipt, model)
    assert [each.place for each in result.differences] == ["model.files[0]"]
    true = fields(receipt_of(model))["model"]["files"]
    changed = fields(receipt)
    changed["model"]["files"] = true
    # As the digest is part of the head, the forger computes all links again.
    found = Receipt.of(changed)
    changed["chain"] = to_builtins(chain_of(found, 20, [top_bytes(row, 20) for row in logits]))
    differences = chaski.verify(changed, model).differences
    own = model.logits([*PROMPT, *receipt.output[:-1]])[len(PROMPT) - 1 :]
    first = next(i for i in range(len(own)) if top_bytes(own[i], 20) != top_bytes(logits[i], 20))
    assert [each.place for each in differences] == [f"step {first}"]


def test_a_changed_link_fails_at_its_step(model: LLM) -> None:
    changed = fields(receipt_of(model, receipt={"top_logits": 3}))
    changed["chain"]["links"][9] = "0" * 64
    (difference,) = chaski.verify(changed, model).differences
    assert difference.place == "step 9"
    assert difference.receipt == f"link {'0' * 64}"


def test_signatures(model: LLM, tmp_path: Path) -> None:
    key, other = server_key(Store(tmp_path / "a")), server_key(Store(tmp_path / "b"))
    receipt = signed(receipt_of(model), key)
    result = chaski.verify(receipt, model, key=shown_key(key))
    assert result.is_same
    assert result.signed_by == shown_key(key)
    (wrong,) = chaski.verify(receipt, model, key=shown_key(other)).differences
    assert (wrong.place, wrong.receipt, wrong.found) == ("signature.key", shown_key(key), shown_key(other))
    changed = fields(receipt)
    changed["output"][4] ^= 1
    result = chaski.verify(rechained(changed), model)
    assert [each.place for each in result.differences] == ["signature", "step 4"]
    assert result.signed_by is None
    (unsigned,) = chaski.verify(receipt_of(model), model, key=shown_key(key)).differences
    assert unsigned.receipt == "no signature"


def test_prompts_may_be_left_out(model: LLM) -> None:
    receipt = receipt_of(model, receipt={"prompt": "digest"})
    assert receipt.prompt.tokens is None
    assert receipt == receipt_of(model).without_prompt()
    with pytest.raises(ReceiptError, match="give the prompt"):
        chaski.verify(receipt, model)
    assert chaski.verify(receipt, model, prompt=PROMPT).is_same
    assert chaski.verify(receipt, model, prompt=PROMPT[:-1]).differences[0].place == "prompt.digest"


def test_a_sample_compares_its_steps_only(model: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = fields(receipt_of(model, temperature=1.0))
    changed["output"][38] ^= 1
    verify = importlib.import_module("chaski.runner.receipts.verify")
    monkeypatch.setattr(verify, "_steps", lambda num_steps, sample: [3, 20, 37])
    result = chaski.verify(rechained(changed), model, sample=3)
    assert result.is_same
    assert result.num_checked == 3
    monkeypatch.setattr(verify, "_steps", lambda num_steps, sample: [3, 20, 38])
    assert chaski.verify(rechained(changed), model, sample=3).differences[0].place == "step 38"


def test_only_steps_of_the_sample_have_logits(model: LLM) -> None:
    receipt = receipt_of(model, temperature=1.0)
    replay, _ = model.prompts.replay(receipt, PROMPT, [3, 20, 37])
    assert len(replay.tokens) == len(PROMPT) + 37
    assert [len(replay.outputs(begin, 20)) for begin in range(0, 80, 20)] == [0, 1, 1, 1]
    outputs_of(model.engine, [replay])
    assert replay.difference is None
    assert replay.num_checked == 3


def test_a_verification_goes_on_after_an_interrupt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(engine: Engine) -> bool:
        raise KeyboardInterrupt

    with chaski.load(path, parallel=2, num_batch=8, prompt_cache=False) as model:
        receipt = receipt_of(model, regex="[a-f]{40}", temperature=1.0)
        replay, _ = model.prompts.replay(receipt, PROMPT, range(len(receipt.output)))
        model.engine.submit(replay)
        model.engine.wait_until(lambda: replay.num_checked > 5)
        with monkeypatch.context() as patched:
            patched.setattr(Engine, "_advance", interrupt)
            with pytest.raises(KeyboardInterrupt):
                model.engine.wait(replay)
        assert replay.slot.tokens == []
        assert replay.num_checked > 5
        model.engine.wait(replay)
        assert replay.difference is None
        assert replay.num_checked == len(receipt.output)


def test_what_gets_no_receipt(model: LLM, path: Path) -> None:
    with pytest.raises(OptionError, match="shift"):
        answer(model, shift=True)
    with pytest.raises(OptionError, match="beam"):
        model.generate(PROMPT, num_beams=2, receipt=True, num_predict=3)
    with pytest.raises(OptionError, match="receipt"):
        answer(model, receipt="please")
    with chaski.load(path, backend="reference") as reference, pytest.raises(OptionError, match="reference"):
        answer(reference)


def test_hostile_receipts_are_refused(model: LLM) -> None:
    receipt = fields(receipt_of(model))

    def refused(error: type[Exception], match: str, **changes: Any) -> None:
        with pytest.raises(error, match=match):
            chaski.verify(rechained({**json.loads(json.dumps(receipt)), **changes}), model)

    refused(ReceiptError, "265 tokens", output=[2**31 - 1])
    refused(ReceiptError, "ends", ends=[4000])
    refused(OptionError, "unknown", options={"path": "/etc/passwd"})
    refused(OptionError, "exceeds|longer|tokens", output=[1] * 5000)
    refused(OptionError, "grammar|regex", options={"regex": "(" * 90})
    refused(AdapterNotFoundError, "no such adapter", adapters=[{"digest": "0" * 64, "scale": 1}])


def test_adapters(path: Path, tmp_path: Path) -> None:
    with open_gguf(path) as file:
        shapes = {name: file.tensors[name].shape for name in adapted_names(file)}
    for name, seed in (("one", 1), ("two", 2)):
        random_adapter(tmp_path / f"{name}.gguf", shapes, seed, 4, QuantType.F32, 12.0, size=0.15)
    files = [str(tmp_path / "one.gguf"), str(tmp_path / "two.gguf")]
    with chaski.load(path, adapters=files, kv_type="i16") as adapted:
        found = answer(adapted, adapter=[("two", 0.5), ("one", 1.0)])
        plain = answer(adapted)
    assert found.receipt is not None
    assert plain.receipt is not None
    assert [part.scale for part in found.receipt.adapters] == [0.5, 1.0]
    assert found.token_ids != plain.token_ids
    assert chaski.verify(found, path, adapters=files[::-1]).is_same
    assert chaski.verify(plain, path).is_same
    with pytest.raises(AdapterNotFoundError, match="adapter"):
        chaski.verify(found, path, adapters=files[:1])
    swapped = fields(found.receipt)
    swapped["adapters"][0]["scale"] = 2.0
    assert chaski.verify(rechained(swapped), path, adapters=files).differences


@pytest.mark.parametrize("kv_type", ["i16", "f16", "bf16:f16"])
def test_a_model_is_loaded_with_the_settings_of_the_receipt(path: Path, kv_type: str) -> None:
    with chaski.load(path, kv_type=kv_type, flash_attention=None, context=128) as loaded:
        receipt = receipt_of(loaded)
    assert receipt.model.context == 128
    assert chaski.verify(receipt, path).is_same


@pytest.mark.parametrize("isa", _native.isa_names())
def test_every_instruction_set(model: LLM, path: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = receipt_of(model, receipt={"top_logits": 8})
    monkeypatch.setenv("CHASKI_ISA", isa)
    assert chaski.verify(receipt, path).is_same
    with chaski.load(path, parallel=2, kv_type="i16") as loaded:
        assert receipt_of(loaded, receipt={"top_logits": 8}) == receipt


def test_the_emulated_gpu(model: LLM, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated = importlib.import_module("tests.cuda.emulated")
    receipt = receipt_of(model, receipt={"top_logits": 8}, num_predict=12)
    monkeypatch.setenv("CHASKI_BACKEND", emulated.NAME)
    assert chaski.verify(receipt, path).is_same
    with chaski.load(path, kv_type="i16", context=model.context) as loaded:
        assert receipt_of(loaded, receipt={"top_logits": 8}, num_predict=12) == receipt


@pytest.mark.parametrize("name", ["drawn", "greedy", "penalties", "grammar", "logits"])
def test_the_reference_agrees(model: LLM, path: Path, name: str) -> None:
    receipt = receipt_of(model, **WAYS[name])
    result = chaski.verify(receipt, path, reference=True)
    assert result.is_same
    assert result.num_checked == len(receipt.output)
    changed = fields(receipt)
    changed["output"][20] = 3 if receipt.output[20] != 3 else 4
    assert "step 20" in [each.place for each in chaski.verify(changed, path, reference=True).differences]


def test_arguments(model: LLM, path: Path) -> None:
    receipt = receipt_of(model)
    with pytest.raises(OptionError, match="sample"):
        chaski.verify(receipt, model, sample=0)
    with pytest.raises(OptionError, match="for loading"):
        chaski.verify(receipt, model, reference=True)
    for form in (receipt, receipt.text(), receipt.text().encode(), fields(receipt)):
        assert chaski.verify(form, model).is_same
    with pytest.raises((ReceiptError, UnsupportedError)):
        chaski.verify("{}", path)
