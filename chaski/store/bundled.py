"""The models bundled with the package: their names, manifests and files.

Next to `name.gguf` are two blobs in the format of `create`: `name.json` describes the model, and
`name.params` contains its options. `name.json` includes the digest of the GGUF file, so listing the model
does not read that file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from msgspec import Struct

from chaski.errors import OptionError
from chaski.names import Digest, ModelName
from chaski.store.manifest import CONFIG, Manifest, ManifestLayer, media_type

__all__ = ["BundledModel", "bundled_model", "bundled_models", "check_free", "read_bundled"]

_FOLDER = Path(__file__).parents[1] / "models"


class BundledModel(Struct, frozen=True):
    """A bundled model.

    config, parameters: the bytes of the blobs with its description and options."""

    name: ModelName
    path: Path
    config: bytes
    parameters: bytes
    manifest: Manifest


def bundled_models() -> dict[ModelName, Path]:
    """Return the files of all bundled models by name, sorted."""
    return {ModelName.parse(path.stem): path for path in sorted(_FOLDER.glob("*.gguf"))}


def bundled_model(name: ModelName) -> Path | None:
    """Return the file of a model, or None. Case is ignored."""
    wanted = str(name).lower()
    return next((path for each, path in bundled_models().items() if str(each).lower() == wanted), None)


def check_free(name: ModelName) -> None:
    """Raise OptionError for the name of a bundled model, which a stored model would hide."""
    if bundled_model(name) is not None:
        raise OptionError(f"'{name.shown}' is a part of chaski; choose another name for your model")


def read_bundled(path: Path) -> BundledModel:
    """Read a bundled model and build the manifest that a store would contain."""
    config, parameters = (path.with_suffix(suffix).read_bytes() for suffix in (".json", ".params"))
    digest, _ = json.loads(config)["rootfs"]["diff_ids"]
    weights = ManifestLayer(media_type("model"), Digest.parse(digest), path.stat().st_size)
    options = _layer(media_type("params"), parameters)
    manifest = Manifest(_layer(CONFIG, config), (weights, options))
    return BundledModel(ModelName.parse(path.stem), path, config, parameters, manifest)


def _layer(kind: str, blob: bytes) -> ManifestLayer:
    return ManifestLayer(kind, Digest(hashlib.sha256(blob).hexdigest()), len(blob))
