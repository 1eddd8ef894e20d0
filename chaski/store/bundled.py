"""The models inside the package, as a store sees them: name, manifest, and a file that stays where it is.

Beside `name.gguf` lies `name.json`: the blob that describes the model, as `create` writes it. It names the
digest of the file, so that nobody has to read that to list the model.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from chaski.names import Digest, ModelName
from chaski.store.manifest import CONFIG, Manifest, ManifestLayer, media_type

__all__ = ["BundledModel", "bundled_model", "bundled_models", "read_bundled"]

_FOLDER = Path(__file__).parents[1] / "models"


@dataclass(frozen=True, slots=True)
class BundledModel:
    """config: the bytes of the blob that the manifest describes the model by."""

    name: ModelName
    path: Path
    config: bytes
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
    config = path.with_suffix(".json").read_bytes()
    (digest,) = json.loads(config)["rootfs"]["diff_ids"]
    weights = ManifestLayer(media_type("model"), Digest.parse(digest), path.stat().st_size)
    described = ManifestLayer(CONFIG, Digest(hashlib.sha256(config).hexdigest()), len(config))
    return BundledModel(ModelName.parse(path.stem), path, config, Manifest(described, (weights,)))
