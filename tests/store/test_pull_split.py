"""Models in parts, which Hugging Face's Hub lists only as files: a pull joins them into one blob."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.names import Digest, ModelName
from chaski.store.model import find_model
from chaski.store.pull import pull
from chaski.store.store import Store
from tests.rewriting import write_split
from tests.store.creating import weights
from tests.store.fake_registry import FakeRegistry, cut_after
from tests.store.pulling import LOCAL, PACE
from tests.store.stores import assert_valid
from tests.store.test_split_files import content

__all__ = ["weights"]

_README = {"README.md": b"read me", "config.json": b"{}"}


class _Hub(NamedTuple):
    registry: FakeRegistry
    parts: list[bytes]

    def put(self, stem: str, parts: list[bytes] | None = None) -> None:
        """Add the parts as files with this path."""
        found = self.parts if parts is None else parts
        names = [f"{stem}-{number:05d}-of-{len(found):05d}.gguf" for number in range(1, len(found) + 1)]
        self.registry.files |= _README | dict(zip(names, found, strict=True))

    def name(self, tag: str = "Q4_K_M") -> ModelName:
        return self.registry.name(f"me/model:{tag}")

    def asked(self) -> list[str]:
        """Return the files requested since the last call."""
        paths = [path.partition("?")[0] for _, path, _ in self.registry.requests if "/resolve/" in path]
        self.registry.requests.clear()
        return paths


@pytest.fixture
def hub(registry: FakeRegistry, weights: Path, tmp_path: Path) -> _Hub:
    folder = tmp_path / "parts"
    folder.mkdir()
    return _Hub(registry, [path.read_bytes() for path in write_split(weights, folder)])


def pulled(store: Store, name: ModelName) -> list[str]:
    return [event.status for event in pull(store, name, LOCAL, PACE)]


def assert_joined(store: Store, name: ModelName, weights: Path) -> None:
    """Check that the model is one complete file, without leftovers of the pull."""
    entry = store.entry(name)
    with open_gguf(store.blobs.path(entry.manifest.of_kind("model")[0].digest)) as found:
        assert "split.count" not in found.metadata
        assert content(found) == content(open_gguf(weights))
    assert_valid(store)
    assert set(os.listdir(store.blobs.folder)) == {layer.digest.file_name for layer in entry.manifest.blobs}


@pytest.mark.parametrize(
    ("stem", "tag"),
    [
        ("model-Q4_K_M", "Q4_K_M"),
        ("model.q4_k_m", "Q4_K_M"),
        ("Q4_K_M/model-Q4_K_M", "q4_k_m"),
        ("Q4_K_M/some model", "Q4_K_M"),
        ("deep/er/model-UD-Q4_K_M", "UD-Q4_K_M"),
        ("model-Q4_K_M", "model-Q4_K_M-00001-of-00003.gguf"),
        ("model-Q4_K_M", "model-Q4_K_M.gguf"),
        ("model-Q4_K_M", "latest"),
        ("model-IQ3_S", "latest"),
    ],
)
def test_the_parts_that_a_tag_means_become_one_model(
    store: Store, hub: _Hub, weights: Path, stem: str, tag: str
) -> None:
    hub.put(stem)
    if tag != "latest":
        hub.put("other-Q8_0", [b"8", b"9"])
    assert pulled(store, hub.name(tag))[-1] == "success"
    assert_joined(store, hub.name(tag), weights)
    with chaski.load(find_model(str(hub.name(tag)), store).path, context=32) as model:
        assert model.generate("the", num_predict=2, temperature=0).text


def test_a_longer_name_with_the_same_end_is_another_model(store: Store, hub: _Hub, weights: Path) -> None:
    hub.put("UD-Q4_K_M/model-UD-Q4_K_M", [b"1", b"2"])
    hub.put("Q4_K_M/model-Q4_K_M")
    pulled(store, hub.name())
    assert_joined(store, hub.name(), weights)


def test_an_unknown_tag_lists_what_there_is(store: Store, hub: _Hub) -> None:
    hub.put("model-Q4_K_M")
    hub.put("model-Q8_0")
    with pytest.raises(chaski.ModelNotFoundError, match="'Q5_K_M'; it has: model-Q4_K_M, model-Q8_0"):
        pulled(store, hub.name("Q5_K_M"))


def test_a_missing_part_is_named(store: Store, hub: _Hub) -> None:
    hub.put("model-Q4_K_M")
    del hub.registry.files["model-Q4_K_M-00002-of-00003.gguf"]
    with pytest.raises(chaski.RegistryError, match="model-Q4_K_M cannot be pulled: part 2 of 3 is missing"):
        pulled(store, hub.name())


def test_the_projector_comes_along(store: Store, hub: _Hub, weights: Path, tmp_path: Path) -> None:
    path = tmp_path / "projector.gguf"
    write_gguf(path, {"general.architecture": "clip"}, {"v.bias": (np.ones(4, np.float32), QuantType.F32)})
    projector = path.read_bytes()
    hub.put("model-Q4_K_M")
    hub.registry.files |= {"mmproj-F32.gguf": b"no projector", "mmproj-model-f16.gguf": projector}
    pulled(store, hub.name())
    (layer,) = store.entry(hub.name()).manifest.of_kind("projector")
    assert store.blobs.path(layer.digest).read_bytes() == projector


def test_what_is_here_is_not_fetched_again(store: Store, hub: _Hub, weights: Path) -> None:
    hub.put("model-Q4_K_M")
    pulled(store, hub.name())
    hub.asked()
    assert pulled(store, hub.name()) == ["pulling manifest", "success"]
    assert not hub.asked()
    hub.put("model-Q4_K_M", [*hub.parts[:2], hub.parts[2] + bytes(32)])
    pulled(store, hub.name())
    assert hub.asked()
    assert_valid(store)


def test_parts_that_came_before_a_failure_stay(store: Store, hub: _Hub, weights: Path) -> None:
    hub.put("model-Q4_K_M")
    first = -(-len(hub.parts[0]) // PACE.min_part_bytes)
    hub.registry.faults.extend([cut_after(len(hub.parts[0]))] * first + [cut_after(0)] * PACE.tries * 4)
    with pytest.raises(chaski.RegistryError, match="max retries exceeded"):
        pulled(store, hub.name())
    assert store.locate(hub.name()) is None
    hub.registry.faults.clear()
    hub.asked()
    pulled(store, hub.name())
    assert not [path for path in hub.asked() if "00001-of" in path]
    assert_joined(store, hub.name(), weights)


def test_a_pull_that_was_stopped_while_joining_goes_on(store: Store, hub: _Hub, weights: Path) -> None:
    hub.put("model-Q4_K_M")
    events = pull(store, hub.name(), LOCAL, PACE)
    next(event for event in events if event.status == "joining the parts")
    events.close()
    hub.asked()
    pulled(store, hub.name())
    assert not hub.asked()
    assert_joined(store, hub.name(), weights)


def test_the_disk_must_have_room_for_parts_and_joined_file(
    store: Store, hub: _Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.put("model-Q4_K_M")
    size = sum(map(len, hub.parts))
    usage = shutil.disk_usage(store.root.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2 * size - 1))
    with pytest.raises(chaski.StoreError, match=f"in 3 parts: {size} bytes .* takes {size} more"):
        pulled(store, hub.name())
    assert not hub.asked()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2 * size))
    pulled(store, hub.name())


def test_parts_that_are_here_need_no_room(store: Store, hub: _Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.put("model-Q4_K_M")
    sizes = [len(part) for part in hub.parts]
    digest = store.blobs.add(hub.parts[0])
    begun = store.blobs.path(Digest(hashlib.sha256(hub.parts[1]).hexdigest()))
    partial = begun.with_name(f"{begun.name}-partial")
    partial.write_bytes(bytes(sizes[1] + 8192))
    usage = shutil.disk_usage(store.root.parent)
    for free, is_enough in ((sizes[2] + sum(sizes) - 1, False), (sizes[2] + sum(sizes), True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        if not is_enough:
            with pytest.raises(chaski.StoreError, match=f": {sizes[2]} bytes .* has {free} free$"):
                pulled(store, hub.name())
    pulled(store, hub.name())
    assert digest not in set(store.blobs)  # it was a part only


def test_a_store_that_cannot_be_made_is_no_room(store: Store, hub: _Hub) -> None:
    hub.put("model-Q4_K_M")
    store.root.write_text("a file")
    with pytest.raises(chaski.StoreError, match=r"^the model store: cannot be used: File exists$"):
        pulled(store, hub.name())


@pytest.mark.parametrize(
    "listed",
    [b"{}", b"[", b'["x",{"lfs":{"oid":1,"size":"2"},"path":3},{"lfs":{"oid":"zz","size":-1},"path":""}]'],
)
def test_a_list_of_files_that_means_nothing(
    store: Store, hub: _Hub, monkeypatch: pytest.MonkeyPatch, listed: bytes
) -> None:
    from tests.store.fake_registry import Handler

    hub.put("model-Q4_K_M")
    monkeypatch.setattr(Handler, "_list_files", lambda handler: handler.reply(200, listed))
    with pytest.raises(chaski.ChaskiError, match=r"that cannot be read|that is not a JSON list|it has: none"):
        pulled(store, hub.name())
