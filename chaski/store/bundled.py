"""The models inside the package, as a store sees them: name, manifest, and a file that stays where it is.

Beside `name.gguf` lie two blobs, as `create` writes them: `name.json`, which describes the model, and
`name.params`, its options. The first names the digest of the file, so that nobody has to read that to list
the model.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from msgspec import Struct

from chaski.names import Digest, ModelName
from chaski.store.manifest import CONFIG, Manifest, ManifestLayer, media_type

__all__ = ["BundledModel", "bundled_model", "bundled_models", "read_bundled"]

_FOLDER = Path(__file__).parents[1] / "models"


class BundledModel(Struct, frozen=True):
    """config, parameters: the bytes of the blobs that describe the model and have its options."""

    name: ModelName
    path: Path
    config: bytes
    parameters: bytes
    manifest: Manifest


def bundled_models() -> dict[ModelName, Path]:
    """The names of all of them, sorted, and their files."""
    return {ModelName.parse(path.stem): path for path in sorted(_FOLDER.glob("*.gguf"))}


def bundled_model(name: ModelName) -> Path | None:
    """The file of a model. Upper and lower case are the same."""
    wanted = str(name).lower()
    return next((path for each, path in bundled_models().items() if str(each).lower() == wanted), None)


def read_bundled(path: Path) -> BundledModel:
    """Read a bundled model, with the manifest that a store would make of its file."""
    config, parameters = (path.with_suffix(suffix).read_bytes() for suffix in (".json", ".params"))
    digest, _ = json.loads(config)["rootfs"]["diff_ids"]
    weights = ManifestLayer(media_type("model"), Digest.parse(digest), path.stat().st_size)
    options = _layer(media_type("params"), parameters)
    manifest = Manifest(_layer(CONFIG, config), (weights, options))
    return BundledModel(ModelName.parse(path.stem), path, config, parameters, manifest)


def _layer(kind: str, blob: bytes) -> ManifestLayer:
    return ManifestLayer(kind, Digest(hashlib.sha256(blob).hexdigest()), len(blob))
