"""Prefixes in memory and on disk: answers equal those of a fresh model, whatever happens to the files."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
import pytest
from msgspec.structs import replace

import chaski
from chaski.errors import FormatError, OptionError
from chaski.runner.prefix import disk_tier, naming, tiers
from chaski.runner.prefix.block_files import FiledBlock, read_block
from chaski.runner.prefix.blocks import Block, KnownBlock
from chaski.runner.prefix.disk_tier import DiskTier
from chaski.runner.prefix.folders import folder_uses, make_room, remove_files, used_bytes
from chaski.runner.prefix.tiers import PrefixTiers
from chaski.store.blobs import Blobs
from chaski.store.verified import note_verified
from tests.backends import about_plain_attention
from tests.random_kills import Kills
from tests.random_mixes import MODELS

PROMPT = [int(token) for token in np.random.default_rng(3).integers(5, 200, 90)]
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 8}


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Return the folder of the prefix cache, with small blocks."""
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    with patch.object(naming, "BLOCK", 16), patch.object(tiers, "_FEWEST", 1):
        yield tmp_path / "models" / "chaski" / "prefix-cache"


def files(store: Path) -> list[Path]:
    return sorted(store.glob("*/*.block"))


def load(path: Path, **options: Any) -> chaski.LLM:
    return chaski.load(path, context=256, **options)


def disk_of(model: chaski.LLM) -> DiskTier:
    assert model.engine.tiers is not None
    assert model.engine.tiers.disk is not None
    return model.engine.tiers.disk


def answer(model: chaski.LLM, prompt: list[int] = PROMPT, **options: Any) -> chaski.Answer:
    return model.generate(prompt, **{**GREEDY, **options})


def fresh(path: Path, prompt: list[int] = PROMPT) -> list[int]:
    with load(path, prompt_cache=False) as model:
        return list(answer(model, prompt).token_ids)


def fill(path: Path) -> None:
    """Keep the blocks of the prompt on disk."""
    with load(path) as model:
        answer(model)


def test_a_prompt_comes_back_after_a_restart(tiny_llama: Path, store: Path) -> None:
    fill(tiny_llama)
    with load(tiny_llama) as model:
        again = answer(model)
    assert list(again.token_ids) == fresh(tiny_llama)
    assert again.cached_tokens == again.done.disk_tokens == len(PROMPT) - 1
    assert again.done.cached_by_tier == {"cells": 0, "memory": 0, "disk": len(PROMPT) - 1}


def test_states_before_the_last_token_of_a_prompt_come_back(tmp_path: Path, store: Path) -> None:
    path = next(model for model in MODELS if model.name == "lfm2").path(tmp_path)
    prompt = [token % 64 for token in PROMPT]
    with load(path) as model:
        first, again = answer(model, prompt), answer(model, prompt)
        answer(model, prompt[::-1])
        from_memory = answer(model, prompt)
    with load(path) as model:
        from_disk = answer(model, prompt)
    for found, tier in ((again, "cells"), (from_memory, "memory"), (from_disk, "disk")):
        assert found.done.cached_by_tier[tier] == len(prompt) - 1
        assert found.token_ids == first.token_ids
    assert list(first.token_ids) == fresh(path, prompt)


def test_only_the_owner_reads_what_is_kept(tiny_llama: Path, store: Path) -> None:
    fill(tiny_llama)
    for path in [store, *store.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_memory_serves_what_other_prompts_have_pushed_out_of_cells(tiny_llama: Path) -> None:
    with load(tiny_llama, prompt_cache="memory") as model:
        first = answer(model)
        answer(model, PROMPT[::-1])
        again = answer(model)
    assert again.token_ids == first.token_ids
    assert again.done.memory_tokens == len(PROMPT) - 1


def test_what_comes_back_fits_a_full_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tokens are restored than a batch has, while every cell of a window of 24 is used."""
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "memory")
    monkeypatch.setattr(PrefixTiers, "_pays", lambda *_: True)
    path = next(model for model in MODELS if model.name == "phi3, window 24").path(tmp_path)
    ids = np.random.default_rng(1).integers(5, 60, 100).tolist()
    prompt, other = ids[:40], ids[40:]
    with chaski.load(path, context=96, parallel=2, num_batch=2) as model:
        first = answer(model, prompt, num_predict=2)
        for each in (other, prompt[:20] + other[:1], other[:-2]):
            answer(model, each, num_predict=2)
        again = answer(model, prompt, num_predict=2)
    assert again.done.cached_by_tier == {"cells": 20, "memory": 19, "disk": 0}
    assert again.token_ids == first.token_ids


def test_the_beginning_of_a_block_is_enough(tiny_llama: Path) -> None:
    other = [*PROMPT[:53], 7, 8, 9]
    fill(tiny_llama)
    with load(tiny_llama) as model:
        found = answer(model, other)
    assert found.done.disk_tokens == 53
    assert list(found.token_ids) == fresh(tiny_llama, other)


def test_nobody_gets_blocks_of_another_salt(tiny_llama: Path) -> None:
    with load(tiny_llama) as model:
        answer(model, cache_salt="a")
    with load(tiny_llama) as model:
        assert answer(model, cache_salt="b").cached_tokens == 0
        assert answer(model).cached_tokens == 0
        assert answer(model, cache_salt="a").cached_tokens == len(PROMPT) - 1


def test_half_of_a_surrogate_pair_is_a_salt_like_any_other(tiny_llama: Path) -> None:
    with load(tiny_llama) as model:
        for salt in ("a\ud83d", "a\ude00"):
            assert answer(model, cache_salt=salt).cached_tokens == 0
            assert answer(model, cache_salt=salt).cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_repaired_blob_has_blocks_of_its_own(tmp_path: Path, tiny_llama: Path, is_recorded: bool) -> None:
    blobs = Blobs(tmp_path / "models" / "blobs")
    path = blobs.path(blobs.add_file(tiny_llama))
    good = path.read_bytes()
    bad = good[:-4096] + bytes(4096)
    if is_recorded:  # a failing disk changes bytes, but no dates
        with path.open("r+b") as file:
            file.write(bad)
        note_verified(path)
    else:
        path.write_bytes(bad)
    fill(path)
    path.unlink()
    blobs.add(good)
    with load(path) as model:
        again = answer(model)
        assert again.cached_tokens == 0
    assert list(again.token_ids) == fresh(tiny_llama)
    with load(path) as model:
        assert answer(model).done.disk_tokens == len(PROMPT) - 1


def test_other_types_of_keys_have_blocks_of_their_own(tiny_llama: Path) -> None:
    fill(tiny_llama)
    with load(tiny_llama, kv_type="f16") as model:
        assert answer(model).cached_tokens == 0
    with load(tiny_llama, num_batch=16, parallel=3) as model:
        assert answer(model).cached_tokens == len(PROMPT) - 1


@about_plain_attention
def test_plain_attention_has_blocks_of_its_own(tiny_llama: Path) -> None:
    fill(tiny_llama)
    with load(tiny_llama, flash_attention=False) as model:
        assert answer(model).cached_tokens == 0


def test_nothing_is_stored_for_who_asks_for_that(tiny_llama: Path, store: Path) -> None:
    with load(tiny_llama) as model:
        answer(model, no_store=True)
        disk_of(model).settle(10)
        assert files(store) == []
    with load(tiny_llama, prompt_cache="memory") as model:
        answer(model)
    assert not store.exists()


@pytest.mark.parametrize("value", ["disk", 2, None])
def test_prompt_cache_is_a_switch_or_memory(tiny_llama: Path, value: Any) -> None:
    with pytest.raises(OptionError, match="prompt_cache"):
        load(tiny_llama, prompt_cache=value)


def test_a_flipped_bit_of_every_byte_of_a_file_is_noticed(tiny_llama: Path, store: Path) -> None:
    fill(tiny_llama)
    path = next(path for path in files(store) if "-16-16-" in path.name)
    filed = FiledBlock.parse(path.name)
    assert filed is not None
    whole = path.read_bytes()
    with load(tiny_llama, prompt_cache="memory") as model:
        leaf = model.engine._cache.leaves[0]
    sizes = [[leaf.rows.num_bytes(16)]]
    block = read_block(path.parent, filed, sizes)
    assert block.tokens == tuple(PROMPT[16:32])
    bits = np.random.default_rng(5).integers(8, size=len(whole))
    with open(path, "r+b") as file:
        for place, bit in enumerate(bits):
            os.pwrite(file.fileno(), bytes([whole[place] ^ 1 << bit]), place)
            with pytest.raises(FormatError):
                read_block(path.parent, filed, sizes)
            os.pwrite(file.fileno(), whole[place : place + 1], place)
    assert read_block(path.parent, filed, sizes).tokens == block.tokens
    for length in (0, 1, 25, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            read_block(path.parent, filed, sizes)
    path.write_bytes(whole + b"x")
    with pytest.raises(FormatError):
        read_block(path.parent, filed, sizes)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap", "gone"])
def test_a_damaged_block_is_computed_again(
    tiny_llama: Path, store: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tiny_llama)
    with load(tiny_llama) as model:
        disk_of(model).refresh()
        third = next(path for path in files(store) if "-32-16-" in path.name)
        data = bytearray(third.read_bytes())
        match damage:
            case "flip":
                data[-5] ^= 64
                third.write_bytes(data)
            case "cut":
                third.write_bytes(data[:-7])
            case "empty":
                third.write_bytes(b"")
            case "swap":
                shutil.copy(next(path for path in files(store) if "-16-16-" in path.name), third)
            case "gone":
                third.unlink()
        found = answer(model)
        assert list(found.token_ids) == fresh(tiny_llama)
        assert found.cached_tokens == 32
        disk_of(model).settle(10)
    assert ("dropped" in caplog.text) == (damage != "gone")
    with load(tiny_llama) as model:  # the tier is available again
        assert answer(model).cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("function", ["read_block", "read_tokens"])
def test_a_process_that_is_short_of_something_drops_no_file(
    tiny_llama: Path, store: Path, monkeypatch: pytest.MonkeyPatch, number: int, function: str
) -> None:
    fill(tiny_llama)
    before = files(store)

    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched, load(tiny_llama) as model:
        patched.setattr(disk_tier, function, refuse)
        assert list(answer(model, PROMPT[:-3]).token_ids) == fresh(tiny_llama, PROMPT[:-3])
    assert set(before) <= set(files(store))
    with load(tiny_llama) as model:
        assert answer(model).done.disk_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_costs_a_note(
    tiny_llama: Path, store: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    with patch.object(disk_tier, "write_block", refuse), load(tiny_llama) as model:
        assert list(answer(model).token_ids) == fresh(tiny_llama)
        disk_of(model).settle(10)
        assert disk_of(model).num_failed == 1
    notes = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(notes) == 1
    assert os.strerror(number) in notes[0].getMessage()
    assert files(store) == []


def test_pipes_among_the_files_hang_nobody(tiny_llama: Path, store: Path) -> None:
    fill(tiny_llama)
    folder = files(store)[0].parent
    for path in [*files(store)[::2], folder / "speed.txt", folder / "model.txt", store / "written.json"]:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    started = time.monotonic()
    assert len(folder_uses(store)) == 1
    with load(tiny_llama) as model:
        assert list(answer(model).token_ids) == fresh(tiny_llama)
        assert list(answer(model, PROMPT[::-1]).token_ids) == fresh(tiny_llama, PROMPT[::-1])
    assert time.monotonic() - started < 5


def test_a_folder_that_disappears_is_made_again(tiny_llama: Path, store: Path) -> None:
    with load(tiny_llama) as model:
        answer(model)
        disk_of(model).settle(10)
        shutil.rmtree(store)
        other = PROMPT[::-1]
        assert list(answer(model, other).token_ids) == fresh(tiny_llama, other)
    assert files(store)


def test_a_crash_leaves_nothing_that_is_read(tiny_llama: Path, store: Path) -> None:
    fill(tiny_llama)
    folder = files(store)[0].parent
    half = folder / "0123.99.abcd.tmp"
    half.write_bytes(b"half")
    (folder / "something else").write_bytes(b"x")
    os.utime(half, (1, 1))
    with load(tiny_llama) as model:
        assert answer(model).cached_tokens == len(PROMPT) - 1
    used_bytes(store)
    assert not half.exists()
    assert (folder / "something else").exists()


def test_two_models_at_once_see_what_the_other_keeps(tiny_llama: Path) -> None:
    with load(tiny_llama) as one, load(tiny_llama) as other:
        answer(other, [9, 9, 9])
        answer(one)
        disk_of(one).settle(10)
        disk_of(other)._looked_at = -10.0  # more than a second ago
        disk_of(other).refresh()
        disk_of(other).settle(10)
        assert answer(other).done.disk_tokens == len(PROMPT) - 1


def test_room_is_made_from_the_ends(tiny_llama: Path, store: Path) -> None:
    fill(tiny_llama)
    every = files(store)
    for path in every:  # the first block of the chain is the least recently used
        begin = int(path.name.split("-")[2])
        os.utime(path, (1000 + begin, 1000 + begin))
    left = make_room(store, used_bytes(store) // 2)
    begins = sorted(int(path.name.split("-")[2]) for path in files(store))
    assert begins == sorted(int(path.name.split("-")[2]) for path in every)[: len(begins)]
    assert 0 < left == used_bytes(store)


def test_files_stay_within_their_limits(
    tiny_llama: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tiny_llama)
    size = used_bytes(store)
    remove_files(store)
    assert folder_uses(store) == []
    monkeypatch.setenv("CHASKI_PREFIX_CACHE_DISK", str(size // 2))
    fill(tiny_llama)
    assert 0 < used_bytes(store) <= size // 2
    monkeypatch.setenv("CHASKI_PREFIX_CACHE_DISK", "1GB")
    monkeypatch.setenv("CHASKI_PREFIX_CACHE_WRITES", str(size))
    with load(tiny_llama) as model:  # most of a day's bytes were written above
        answer(model, PROMPT[::-1])
        disk_of(model).settle(10)
        assert disk_of(model).num_dropped
    assert used_bytes(store) < size


def test_uses_are_listed_and_old_ones_removed(tiny_llama: Path, store: Path) -> None:
    fill(tiny_llama)
    (use,) = folder_uses(store)
    assert use.model == str(tiny_llama)
    assert use.num_blocks == len(files(store)) == 7
    os.utime(files(store)[0], (1, 1))
    assert remove_files(store, before=1000.0) > 0
    assert len(files(store)) == 6


def test_a_read_that_never_ends_is_given_up(tiny_llama: Path) -> None:
    from concurrent.futures import Future

    from chaski.runner.prefix import restoration

    fill(tiny_llama)
    with load(tiny_llama) as model:
        disk = disk_of(model)
        with (
            patch.object(disk, "read", lambda filed, take: Future()),
            patch.object(restoration, "_PATIENCE", 0.05),
        ):
            found = answer(model)
        assert list(found.token_ids) == fresh(tiny_llama)


def test_parts_that_are_lost_on_the_way_are_missed(tiny_llama: Path) -> None:
    whole = PrefixTiers.read
    lost: list[Block] = []

    def read(kept: PrefixTiers, block: KnownBlock) -> Any:
        found = whole(kept, block)
        if lost or not isinstance(found, Block):
            return found
        lost.append(found)
        return replace(found, parts=tuple(() for _ in found.parts))

    with load(tiny_llama, prompt_cache="memory") as model:
        first = answer(model)
        answer(model, PROMPT[::-1])
        with patch.object(PrefixTiers, "read", read):
            again = answer(model)
    assert lost
    assert again.token_ids == first.token_ids
    assert again.done.memory_tokens == len(PROMPT) - 1


def test_a_request_that_is_left_while_it_comes_back_harms_no_other(tiny_llama: Path) -> None:
    from concurrent.futures import Future

    fill(tiny_llama)
    with load(tiny_llama, parallel=2) as model:
        other = model.stream([5, 6, 7], temperature=0, num_predict=30)
        next(other)
        with patch.object(disk_of(model), "read", lambda filed, take: Future()):
            left = model.stream(PROMPT, **GREEDY)
            for _ in range(5):
                next(other)
            left.close()
        for _ in other:
            pass
        assert list(answer(model).token_ids) == fresh(tiny_llama)


@pytest.mark.long
def test_processes_that_are_killed_leave_nothing_wrong(tmp_path: Path) -> None:
    kills = Kills(tmp_path, seed=1)
    kills.run(10)
    assert kills.wrong == []
    assert kills.killed
    assert kills.restored


@pytest.mark.long
def test_a_process_may_die_at_any_change_of_a_file(tmp_path: Path) -> None:
    kills = Kills(tmp_path, seed=3)
    kills.at_every_change([12], [17])  # 23 and 7 tokens
    assert kills.wrong == []
    assert kills.restored
    assert set(kills.died) >= {
        *("mkdir folder", "open .tmp", "write .tmp", "half of write .tmp", "replace model.txt"),
        *("open written.json", "write written.json", "half of write written.json", "ftruncate written.json"),
        *("replace .block", "utime .block", "unlink .block", "unlink .tmp", "replace speed.txt"),
        *("unlink speed.txt", "unlink model.txt", "rmdir folder"),
    }


def test_the_speed_of_prompts_outlives_the_process(tiny_llama: Path, store: Path) -> None:
    fill(tiny_llama)
    (kept,) = store.glob("*/speed.txt")
    kept.write_bytes(b"50 %08x" % crc32(b"50"))
    with load(tiny_llama) as model:
        assert model.engine.tiers is not None
        assert model.engine.tiers.prefill.rate == 50
        again = answer(model)
    assert again.done.disk_tokens == len(PROMPT) - 1
    assert 0 < again.done.saved_seconds <= (len(PROMPT) - 1) / 50
    assert list(again.token_ids) == fresh(tiny_llama)


@pytest.mark.parametrize("rate", [b"1e-3", b"1e9", b"damaged"])
def test_a_wrong_speed_changes_no_answer(tiny_llama: Path, store: Path, rate: bytes) -> None:
    fill(tiny_llama)
    (kept,) = store.glob("*/speed.txt")
    kept.write_bytes(b"%s %08x" % (rate, crc32(rate)))
    with load(tiny_llama) as model:
        first, second = answer(model), answer(model, [*PROMPT[:70], 9])
    assert list(first.token_ids) == fresh(tiny_llama)
    assert first.done.disk_tokens == (0 if rate == b"1e9" else len(PROMPT) - 1)
    assert list(second.token_ids) == fresh(tiny_llama, [*PROMPT[:70], 9])


def test_the_tiers_tell_what_they_hold(tiny_llama: Path, store: Path) -> None:
    with load(tiny_llama) as model:
        answer(model)
        disk_of(model).settle(10)
        tiers_of = model.engine.tiers
        assert tiers_of is not None
        memory, disk = tiers_of.uses()
        length = len(PROMPT) + GREEDY["num_predict"] - 1
        assert (memory.tier, memory.num_tokens, memory.num_blocks) == ("memory", length, -(-length // 16))
        assert (disk.tier, disk.num_tokens, disk.num_blocks) == ("disk", length, -(-length // 16))
        assert memory.num_bytes == disk.num_bytes > 0
        tiers_of.tree.clear()
        assert tiers_of.uses()[0].num_tokens == 0
    (use,) = folder_uses(store)
    assert (use.num_tokens, use.num_blocks) == (length, -(-length // 16))
    remove_files(store)
    assert not any(store.glob("*/*"))


def test_what_found_no_room_is_written_when_nothing_is_computed(tiny_llama: Path, store: Path) -> None:
    with patch.object(disk_tier, "_MAX_WAITING", 0), load(tiny_llama) as model:
        disk = disk_of(model)
        found = answer(model)
        disk.settle(5)
        assert len(files(store)) >= len(PROMPT) // 16
        assert not disk.take_put_off()
    with load(tiny_llama) as model:
        again = answer(model)
        assert again.cached_tokens == len(PROMPT) - 1
    assert again.token_ids == found.token_ids


def test_what_is_not_to_be_stored_is_never_written(tiny_llama: Path, store: Path) -> None:
    with patch.object(disk_tier, "_MAX_WAITING", 0), load(tiny_llama) as model:
        answer(model, no_store=True)
        disk_of(model).settle(5)
    assert not files(store)
