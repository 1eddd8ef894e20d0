"""Small stores for tests, made by hand in Ollama's format, and invariants of any store."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from chaski.store.store import Store

_KIND = "application/vnd.ollama.image."
CONFIG = b'{"model_format":"gguf","model_family":"llama","model_type":"95.7K","file_type":"F32"}'


def put_by_hand(root: Path, name: str, layers: dict[str, bytes], config: bytes = CONFIG) -> Path:
    """Write a model with these layers by kind as `host/namespace/model/tag`; return its manifest."""
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    described = [_layer(root, _KIND + kind.split("#")[0], data) for kind, data in layers.items()]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": _layer(root, "application/vnd.docker.container.image.v1+json", config),
        "layers": described,
    }
    path = root / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest))
    return path


def _layer(root: Path, media_type: str, data: bytes) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    (root / "blobs" / f"sha256-{digest}").write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def assert_valid(store: Store) -> None:
    """Check that every model is complete, and that every blob matches its name."""
    for name in store.names():
        for layer in store.entry(name).manifest.blobs:
            assert store.blobs.size(layer.digest) == layer.size
    for digest in store.blobs:
        assert hashlib.sha256(store.blobs.path(digest).read_bytes()).hexdigest() == digest.hex


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return all files below a folder with their modification times and contents."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
