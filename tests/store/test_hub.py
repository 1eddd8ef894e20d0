"""The files of a repository of the Hub: its models, their first bytes, and the file that a tag means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chaski.errors import ModelNotFoundError, RegistryError
from chaski.store import hub as module
from chaski.store.hub import Hub, HubModel
from chaski.store.registry import Registry
from tests.store.fake_registry import FakeRegistry, Handler, answer
from tests.store.pulling import LOCAL

PART = "{}-{:05d}-of-{:05d}.gguf"


def parts(stem: str, *sizes: int) -> dict[str, bytes]:
    names = [PART.format(stem, number, len(sizes)) for number in range(1, len(sizes) + 1)]
    return {name: name.encode().ljust(size, b".") for name, size in zip(names, sizes, strict=True)}


@contextmanager
def hub_of(registry: FakeRegistry, tag: str = "latest") -> Iterator[Hub]:
    with Registry(registry.name(f"me/model:{tag}"), LOCAL) as client:
        yield Hub(client)


def chosen(registry: FakeRegistry, tag: str) -> list[str]:
    with hub_of(registry, tag) as hub:
        return [file.path for file in hub.split_model().files]


def models(registry: FakeRegistry) -> list[HubModel]:
    with hub_of(registry) as hub:
        return hub.models()


def test_models_are_listed_smallest_first(registry: FakeRegistry) -> None:
    registry.files = {
        "README.md": b"read me",
        "m-Q8_0.gguf": b"8" * 900,
        "m-Q4_0.GGUF": b"4" * 400,
        **parts("big/m-F16", 700, 700, 100),
        "mmproj-F16.gguf": b"p",
        "m.imatrix.gguf": b"i",
        PART.format("lost", 2, 2): b"without its first part",
        "same/b.gguf": b"s" * 500,
        "same/a.gguf": b"s" * 500,
    }
    found = models(registry)
    assert [(str(model.path), model.num_bytes) for model in found] == [
        ("m-Q4_0", 400),
        ("same/a", 500),
        ("same/b", 500),
        ("m-Q8_0", 900),
        ("big/m-F16", 1500),
    ]
    assert [part.path for part in found[-1].parts] == [*parts("big/m-F16", 1, 1, 1)]


def test_a_repository_without_models_is_named(registry: FakeRegistry) -> None:
    registry.files = {"README.md": b"read me", "MMPROJ-F16.gguf": b"p", "Imatrix.gguf": b"i"}
    with pytest.raises(ModelNotFoundError, match=r"^me/model has no GGUF files of models$"):
        models(registry)


@pytest.mark.parametrize("has_ranges", [True, False])
def test_the_beginning_of_a_file(registry: FakeRegistry, has_ranges: bool) -> None:
    data = bytes(range(256)) * 400
    registry.files = {"a b/m #1.gguf": data}
    registry.has_ranges = has_ranges
    with hub_of(registry) as hub:
        (file,) = hub.models()[0].parts
        for size in (1, 1000, len(data) - 1, len(data), len(data) + 1):
            assert hub.beginning(file, size) == data[:size]
    asked = [headers.get("Range") for _, path, headers in registry.requests if path.startswith("/cdn/")]
    assert asked == ["bytes=0-0", "bytes=0-999", f"bytes=0-{len(data) - 2}", None, None]


def test_a_beginning_that_is_too_short(registry: FakeRegistry) -> None:
    registry.files = {"m.gguf": b"weights" * 100}
    registry.faults.append(answer(206, {"Content-Range": "bytes 0-9/700"}, b"weightswei"))
    with hub_of(registry) as hub:
        (file,) = hub.models()[0].parts
        with pytest.raises(RegistryError, match=r"^me/model sent 10 of 600 bytes of m\.gguf$"):
            hub.beginning(file, 600)


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("latest", "m-Q4_K_M"),
        ("q4_k_m", "m-Q4_K_M"),
        ("Q8_0", "Q8_0/some"),
        ("UD-Q4_K_M", "UD/m-UD-Q4_K_M"),
        ("f16", "m.F16"),
        ("m.F16.gguf", "m.F16"),
        ("M-UD-q4_k_m-00002-of-00002.GGUF", "UD/m-UD-Q4_K_M"),
    ],
)
def test_a_tag_means_the_shortest_name_that_fits(registry: FakeRegistry, tag: str, expected: str) -> None:
    registry.files_per_page = 100
    for stem in ("UD/m-UD-Q4_K_M", "m-Q4_K_M", "Q8_0/some", "m.F16", "z/m.F16"):
        registry.files |= parts(stem, 90, 90)
    assert chosen(registry, tag) == [*parts(expected, 1, 1)]


def test_without_a_tag_the_only_model_is_meant(registry: FakeRegistry) -> None:
    registry.files = parts("m-IQ1_S", 90, 90)
    assert chosen(registry, "latest") == [*registry.files]
    with pytest.raises(
        ModelNotFoundError,
        match=r"^me/model has no GGUF file in parts for the tag 'IQ2_S'; it has: m-IQ1_S$",
    ):
        chosen(registry, "IQ2_S")
    registry.files |= parts("m-IQ3_S", 90, 90)
    with pytest.raises(ModelNotFoundError, match=r"'latest'; it has: m-IQ1_S, m-IQ3_S$"):
        chosen(registry, "latest")


def test_at_most_ten_candidates_are_listed(registry: FakeRegistry) -> None:
    registry.files_per_page = 100
    for number in range(12):
        registry.files |= parts(f"m-{number:02d}", 90)
    with pytest.raises(ModelNotFoundError, match=r"it has: (m-\d\d, ){9}m-09$"):
        chosen(registry, "Q8_0")


def test_parts_of_two_ways_to_split_are_not_mixed(registry: FakeRegistry) -> None:
    registry.files = parts("m-Q4_K_M", 90, 90) | parts("m-Q4_K_M", 60, 60, 60)
    with pytest.raises(RegistryError, match=r"^m-Q4_K_M cannot be pulled: files of two ways to split it$"):
        chosen(registry, "latest")


@pytest.mark.parametrize(
    ("projectors", "expected"),
    [
        (["mmproj-m-BF16.gguf", "mmproj-m-f16.gguf", "mmproj-m-f32.gguf"], "mmproj-m-f16.gguf"),
        (["mmproj-m-f32.gguf", "mmproj_m.bf16.gguf"], "mmproj_m.bf16.gguf"),
        (["mmproj-m-f32.gguf", "mmproj-m-q8_0.gguf"], "mmproj-m-f32.gguf"),
        (["z/m.mmproj-q8_0.gguf", "a/m.MMPROJ-q8_0.GGUF", "mmproj.bin"], "a/m.MMPROJ-q8_0.GGUF"),
        (["mmproj-b.gguf", "mmproj-a.gguf"], "mmproj-a.gguf"),
    ],
)
def test_the_projector_of_the_most_common_type(
    registry: FakeRegistry, projectors: list[str], expected: str
) -> None:
    registry.files = parts("m-Q4_K_M", 90) | dict.fromkeys(projectors, b"p")
    assert chosen(registry, "latest") == [PART.format("m-Q4_K_M", 1, 1), expected]


# ---- lists that a server sends ----


@pytest.fixture
def listing(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answer requests for the list of files with these values."""
    reply: dict[str, Any] = {"status": 200, "body": b"[]", "headers": {}}
    monkeypatch.setattr(
        Handler,
        "_list_files",
        lambda handler: handler.reply(reply["status"], reply["body"], reply["headers"]),
    )
    registry.files = {"m.gguf": b"m"}
    return reply


def entry(path: object = "m.gguf", size: object = 5, oid: object = "a" * 64) -> dict[str, Any]:
    return {"path": path, "size": 1, "lfs": {"size": size, "oid": oid}}


def test_entries_that_are_no_files_are_passed_over(registry: FakeRegistry, listing: dict[str, Any]) -> None:
    bad: list[Any] = [
        entry(path=3), entry(size="5"), entry(size=True), entry(size=-1), entry(size=(1 << 50) + 1),
        entry(oid=7), entry(oid="zz"), {"path": "m.gguf", "lfs": 5}, {"path": "m.gguf"}, "text", None,
    ]  # fmt: skip
    good = [entry("empty.gguf", 0), entry("one.gguf", 1, "sha256:" + "b" * 64), entry("huge.gguf", 1 << 50)]
    listing["body"] = json.dumps(bad + good).encode()
    found = [part for model in models(registry) for part in model.parts]
    assert [(file.path, file.size) for file in found] == [
        ("empty.gguf", 0),
        ("one.gguf", 1),
        ("huge.gguf", 1 << 50),
    ]
    assert [file.digest.hex[0] for file in found] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, b"[]", r"^{host} answered 404 for the list of files$"),
        (200, b"[", r"^{host} sent a file list that cannot be read: "),
        (200, b"[" * 100_000, r"^{host} sent a file list that cannot be read: "),
        (200, b"[" + b"0," * 200_000 + b"0]", r"^{host} sent a file list that cannot be read: "),
        (200, b"{}", r"^{host} sent a file list that is not a JSON list$"),
        (200, b" " * ((8 << 20) + 1), r"^{host} sent more than 8388608 bytes "),
    ],
)
def test_a_list_that_cannot_be_used(
    registry: FakeRegistry, listing: dict[str, Any], status: int, body: bytes, message: str
) -> None:
    listing.update(status=status, body=body)
    with pytest.raises(RegistryError, match=message.format(host=registry.host)):
        models(registry)


def test_a_list_without_end(
    registry: FakeRegistry, listing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_PAGES", 3)
    listing["headers"] = {"Link": '</api/models/me/model/tree/main?recursive=true>; rel="next"'}
    with pytest.raises(RegistryError, match=r"^me/model lists its files on more than 3 pages$"):
        models(registry)
    assert len(registry.requests) == 3
    assert {(path, headers["Accept"]) for _, path, headers in registry.requests} == {
        ("/api/models/me/model/tree/main?recursive=true", "application/json")
    }
