from __future__ import annotations

import json
from typing import Any

import pytest

from chaski.errors import FormatError
from chaski.names import Digest
from chaski.store.manifest import CONFIG, Manifest, ManifestLayer, go_json, media_type

A, B = Digest("a" * 64), Digest("b" * 64)
# In Ollama's form.
TEXT = (
    '{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json",'
    f'"config":{{"mediaType":"{CONFIG}","digest":"{B}","size":3}},'
    f'"layers":[{{"mediaType":"application/vnd.ollama.image.model","digest":"{A}","size":5,'
    '"from":"registry.ollama.ai/library/x:latest"}]}\n'
).encode()


def test_a_manifest_is_read_and_written() -> None:
    manifest = Manifest.parse(TEXT)
    model = ManifestLayer(media_type("model"), A, 5, "registry.ollama.ai/library/x:latest")
    assert manifest == Manifest(ManifestLayer(CONFIG, B, 3), (model,))
    assert manifest.encode() == TEXT
    assert manifest.size == 8
    assert manifest.of_kind("model") == [model]
    assert manifest.of_kind("params") == []
    assert [layer.digest for layer in manifest.blobs] == [A, B]


def changed(**changes: Any) -> bytes:
    found = json.loads(TEXT)
    for path, value in changes.items():
        *folders, key = path.split("__")
        place = found
        for folder in folders:
            place = place[int(folder) if folder.isdigit() else folder]
        place[key] = value
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000,
        changed(schemaVersion=1), changed(layers=None), changed(layers={}), changed(config=None),
        changed(layers=[5]), changed(layers__0__digest="sha256:../../../etc/passwd"),
        changed(layers__0__digest=None), changed(layers__0__digest=7), changed(config__digest=""),
        changed(layers__0__size=-1), changed(layers__0__size="5"), changed(layers__0__size=1.5),
        changed(layers__0__size=True), changed(layers__0__size=1 << 60), changed(layers__0__mediaType=[]),
        changed(layers__0__from={}), changed(layers__0__from="half \ud800"), changed(layers=[1] * 20_000),
    ],
)  # fmt: skip
def test_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^not a manifest of a model: "):
        Manifest.parse(data)


def test_json_is_that_of_go() -> None:
    assert (
        go_json({"a": "<é>&\u2028", "b": [1, 0.5]})
        == b'{"a":"\\u003c\xc3\xa9\\u003e\\u0026\\u2028","b":[1,0.5]}\n'
    )


def test_the_name_of_a_tensor_is_kept() -> None:
    layer = ManifestLayer(media_type("tensor"), A, 5, None, "blk.0.weight")
    manifest = Manifest(ManifestLayer(CONFIG, B, 3), (layer,))
    assert Manifest.parse(manifest.encode()) == manifest
