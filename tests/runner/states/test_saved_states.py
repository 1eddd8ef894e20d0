"""Saved states: later answers equal those of a fresh model; damaged or foreign states are refused."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from msgspec.structs import force_setattr

import chaski
from chaski.errors import FormatError, OptionError, StateError, UnsupportedError
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.runner.prefix import block_files, naming, tiers
from chaski.runner.states import files
from chaski.runner.states.state_calls import EraseSlot, SavedState, SaveSlot
from tests.adapters import random_adapter
from tests.backends import HAS_PLAIN_ATTENTION
from tests.cache_checks import assert_whole
from tests.families import converted
from tests.nextn import write_with_blocks
from tests.own_heads import write_with_heads
from tests.tiny_llama import write_tiny_llama

ARCHITECTURES = Path(__file__).parents[2] / "data" / "architectures"
PROMPT = [int(token) for token in np.random.default_rng(3).integers(5, 60, 90)]
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 8, "logprobs": True}
TALK = [{"role": "user", "content": "hello there"}]


@pytest.fixture(autouse=True)
def small_blocks() -> Iterator[None]:
    with patch.object(naming, "BLOCK", 16), patch.object(tiers, "_FEWEST", 1):
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.state"


def load(path: Path, **options: Any) -> chaski.LLM:
    return chaski.load(path, **{"context": 256, "threads": 1, **options})


def said(answer: chaski.Answer) -> tuple[Any, ...]:
    return tuple(answer.token_ids), answer.text, answer.logprobs


def fresh(model: Path, prompt: list[int] = PROMPT, **options: Any) -> tuple[Any, ...]:
    with load(model, prompt_cache=False) as alone:
        return said(alone.generate(prompt, **GREEDY, **options))


def save(model: Path, path: Path, **options: Any) -> SavedState:
    with load(model) as one:
        return one.save_state(path, PROMPT, **options)


def model_of(kind: str, folder: Path) -> Path:
    if kind == "llama":
        return write_tiny_llama(folder / "tiny.gguf")
    if kind.endswith("blocks"):
        return write_with_blocks(kind.replace(" blocks", "/usual"), folder / "blocks.gguf")
    if "/" in kind:
        return converted(kind)
    if kind.endswith("heads"):
        return write_with_heads(kind.split()[0], folder / "heads.gguf")
    return ARCHITECTURES / f"{kind}.gguf"


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("llama", 89),
        ("gemma3", 89),
        ("gpt-oss", 89),
        ("llama4", 89),
        ("lfm2", 90),
        ("qwen35 heads", 64),
        ("step35 blocks", 89),
        ("deepseek4/yarn", 64),
    ],
)
def test_answers_behind_a_state_are_those_of_a_fresh_model(
    tmp_path: Path, path: Path, kind: str, least: int
) -> None:
    model = model_of(kind, tmp_path)
    longer = [*PROMPT, 7, 8, 9, 7]
    saved = save(model, path)
    assert least <= saved.tokens <= len(PROMPT)
    assert saved.num_bytes == path.stat().st_size
    with load(model, parallel=2) as other:
        loaded = other.load_state(path)
        assert (loaded.tokens, loaded.num_bytes) == (saved.tokens, saved.num_bytes)
        found = other.generate(longer, **GREEDY)
        assert found.done.memory_tokens == found.cached_tokens == saved.tokens
        assert_whole(other.engine)
    assert said(found) == fresh(model, longer)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
def test_a_state_is_made_of_what_cells_or_tiers_hold(tmp_path: Path, path: Path, kind: str) -> None:
    model = model_of(kind, tmp_path)
    with load(model, parallel=1) as one:
        answer = one.generate(PROMPT, **GREEDY)
        whole = [*PROMPT, *answer.token_ids[:-1]]
        one.generate(PROMPT[::-1], **GREEDY)  # another prompt has the cells now
        assert one.save_state(path, whole).tokens >= len(whole) - 1
    with load(model) as other:
        other.load_state(path)
        found = other.generate([*whole, 5], **GREEDY)
        assert found.cached_tokens >= len(whole) - 1
    assert said(found) == fresh(model, [*whole, 5])


def test_a_state_needs_no_memory_tier_to_be_saved(
    tiny_llama: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHASKI_PREFIX_CACHE_MEMORY", "0")
    saved = save(tiny_llama, path)
    assert saved.tokens == len(PROMPT)
    with load(tiny_llama) as other:
        with pytest.raises(StateError, match=r"takes [\d,]+ bytes of memory, .* may take 0"):
            other.load_state(path)
        assert other.generate(PROMPT, **GREEDY).cached_tokens == 0


def test_conversations_are_saved_by_their_messages(tiny_llama: Path, path: Path) -> None:
    with load(tiny_llama) as one:
        answer = one.chat(TALK, **GREEDY)
        talk = [*TALK, {"role": "assistant", "content": answer.text}]
        saved = one.save_state(path, talk)
    after = [*talk, {"role": "user", "content": "more"}]
    with load(tiny_llama) as other:
        other.load_state(path)
        found = other.chat(after, **GREEDY)
        assert 0 < found.done.memory_tokens <= saved.tokens
    with load(tiny_llama, prompt_cache=False) as alone:
        assert said(alone.chat(after, **GREEDY)) == said(found)


def test_only_the_owner_reads_a_state(tiny_llama: Path, path: Path) -> None:
    path.write_text("something older")
    os.chmod(path, 0o644)
    save(tiny_llama, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_every_flipped_bit_and_every_cut_is_noticed(tiny_llama: Path, path: Path) -> None:
    save(tiny_llama, path)
    whole = path.read_bytes()
    random = np.random.default_rng(5)
    places = {*range(200), *(int(each) for each in random.integers(0, len(whole), 150))}
    places |= {*range(len(whole) - 100, len(whole))}
    with load(tiny_llama) as model:
        for place in places:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << int(random.integers(8))
            path.write_bytes(damaged)
            with pytest.raises(FormatError):
                model.load_state(path)
        for length in (0, 1, 14, 15, 20, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(FormatError):
                model.load_state(path)
        path.write_bytes(whole + b"x")
        with pytest.raises(FormatError):
            model.load_state(path)
        assert model.engine.tiers is not None
        assert model.engine.tiers.tree.use().num_blocks == 0
        path.write_bytes(whole)
        assert model.load_state(path).tokens == len(PROMPT)


def test_tokens_are_not_those_that_a_file_says_they_are(tiny_llama: Path, path: Path) -> None:
    """Rows of some tokens under the names of others, with correct checksums, are refused."""

    def lie(block: Any) -> list[memoryview]:
        force_setattr(block, "tokens", (*block.tokens[:-1], block.tokens[-1] + 1))
        return block_files.pieces(block)

    with patch.object(files, "pieces", lie):
        save(tiny_llama, path)
    with load(tiny_llama) as model, pytest.raises(FormatError, match="are not those of their name"):
        model.load_state(path)


def test_states_of_another_model_are_refused(tiny_llama: Path, tmp_path: Path, path: Path) -> None:
    save(tiny_llama, path)
    other = write_tiny_llama(tmp_path / "other.gguf", general__name="Other")
    for model, options, reason in (
        (other, {}, "another model, or of another file: tiny.gguf"),
        (tiny_llama, {"kv_type": "f16"}, "kv_type"),
        *[(tiny_llama, {"flash_attention": False}, "flash_attention")] * HAS_PLAIN_ATTENTION,
    ):
        with load(model, **options) as loaded:
            with pytest.raises(StateError, match=reason):
                loaded.load_state(path)
            assert loaded.generate(PROMPT, **GREEDY).cached_tokens == 0
    with load(tiny_llama) as loaded:
        for changed, reason in (("version", "saved by chaski 0.0"), ("rule", "rounds otherwise")):
            assert loaded.engine.tiers is not None
            origin = {**loaded.engine.tiers.origin, changed: "0.0"}
            with patch.object(loaded.engine.tiers, "origin", origin):
                loaded.save_state(path, PROMPT)
            with pytest.raises(StateError, match=reason):
                loaded.load_state(path)


def test_states_of_another_salt_are_refused(tiny_llama: Path, path: Path) -> None:
    save(tiny_llama, path, cache_salt="a")
    with load(tiny_llama) as model:
        for salt in ("", "b"):
            with pytest.raises(StateError, match="another cache_salt"):
                model.load_state(path, cache_salt=salt)
        assert model.load_state(path, cache_salt="a").tokens == len(PROMPT)
        assert model.generate(PROMPT, **GREEDY).cached_tokens == 0
        assert model.generate(PROMPT, **GREEDY, cache_salt="a").cached_tokens == len(PROMPT) - 1


def test_states_of_an_adapter_are_for_it_alone(tiny_llama: Path, tmp_path: Path, path: Path) -> None:
    adapter = random_adapter(tmp_path / "a.gguf", {"blk.0.attn_q.weight": (64, 64)}, 1, 4, size=0.3)
    with load(tiny_llama, adapters={"a": adapter}) as model:
        model.save_state(path, PROMPT, adapter="a")
        expected = said(model.generate(PROMPT, **GREEDY, adapter="a"))
    with load(tiny_llama, adapters={"b": adapter}) as model:
        model.load_state(path)
        assert model.generate(PROMPT, **GREEDY).cached_tokens == 0
        found = model.generate(PROMPT, **GREEDY, adapter="b")
        assert found.cached_tokens == len(PROMPT) - 1
    assert said(found) == expected


def test_errors_say_what_is_wrong(tiny_llama: Path, tmp_path: Path, path: Path) -> None:
    with load(tiny_llama, prompt_cache=False) as model:
        for call in (lambda: model.save_state(path, PROMPT), lambda: model.load_state(path)):
            with pytest.raises(UnsupportedError, match="prefix cache, which is off"):
                call()
    with load(tiny_llama) as model:
        with pytest.raises(StateError, match="the file does not exist"):
            model.load_state(path)
        with pytest.raises(StateError, match="cannot be read: Is a directory"):
            model.load_state(tmp_path)
        with pytest.raises(StateError, match="cannot be written: No such file"):
            model.save_state(tmp_path / "no" / "folder", PROMPT)
        for name in ("a\ud83d", "a\0b"):  # invalid as file names
            with pytest.raises(StateError, match="cannot be read"):
                model.load_state(tmp_path / name)
            with pytest.raises(StateError, match="cannot be written"):
                model.save_state(tmp_path / name, PROMPT)
        with pytest.raises(OptionError, match="tools and think are for the messages"):
            model.save_state(path, PROMPT, think=True)
        with pytest.raises(OptionError, match="the prompt has"):
            model.save_state(path, PROMPT * 10)
        full = OSError(28, "No space left on device")
        with patch.object(files, "write_all", side_effect=full), pytest.raises(StateError, match="No space"):
            model.save_state(path, PROMPT)
        assert os.listdir(tmp_path) == []


def test_slots_are_saved_and_erased(tiny_llama: Path, path: Path) -> None:
    with load(tiny_llama, parallel=2) as model:
        answer = model.generate(PROMPT, **GREEDY)
        held = len(PROMPT) + len(answer.token_ids) - 1
        assert model._state(SaveSlot(0, str(path))).tokens == held
        for slot, salt in ((1, ""), (0, "other"), (2, ""), (-1, "")):
            for call in (SaveSlot(slot, str(path), salt), EraseSlot(slot, salt)):
                with pytest.raises(OptionError, match=f"slot {slot}"):
                    model._state(call)
        assert model._state(EraseSlot(0)).tokens == held
        assert model.generate(PROMPT, **GREEDY).cached_tokens == 0
        model._state(EraseSlot(1))  # the least recently used one
        model.load_state(path)
        again = model.generate(PROMPT, **GREEDY)
        assert again.cached_tokens == len(PROMPT) - 1
        assert said(again) == said(answer)
        assert_whole(model.engine)


def test_erasing_keeps_what_others_begin_with(tiny_llama: Path) -> None:
    other = [*PROMPT[:40], *PROMPT[::-1][:30]]
    with load(tiny_llama, parallel=1) as model:
        model.generate(PROMPT, **GREEDY)
        model.generate(other, **GREEDY)
        model._state(EraseSlot(0))
        assert model.generate(other, **GREEDY).cached_tokens == 40


def test_states_are_saved_and_loaded_while_others_are_answered(tiny_llama: Path, tmp_path: Path) -> None:
    prompts = [[*PROMPT[:30], *PROMPT[begin:]] for begin in range(6)]
    expected = [fresh(tiny_llama, prompt) for prompt in prompts]
    found: dict[int, tuple[Any, ...]] = {}
    with load(tiny_llama, parallel=2) as model:

        def work(number: int) -> None:
            path = tmp_path / f"{number % 3}.state"
            model.save_state(path, prompts[number])
            model.load_state(path)
            found[number] = said(model.generate(prompts[number], **GREEDY))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert_whole(model.engine)
    assert [found[number] for number in range(6)] == expected


@pytest.mark.parametrize("is_worker", [False, True])
def test_workers_and_event_loops_have_states_too(tiny_llama: Path, path: Path, is_worker: bool) -> None:
    kind: Any = chaski.Worker if is_worker else chaski.load

    async def work(model: AsyncModel) -> None:
        saved = await model.save_state(path, "the end of it all")
        assert (await model.load_state(path)).tokens == saved.tokens > 0
        with pytest.raises(StateError, match="another cache_salt"):
            await model.load_state(path, cache_salt="b")

    with kind(tiny_llama, threads=1) as model:
        asyncio.run(work(model.asynchronous()))
        assert model.save_state(path, TALK).tokens > 0
        path.write_bytes(b"x")
        with pytest.raises(FormatError):
            model.load_state(path)
