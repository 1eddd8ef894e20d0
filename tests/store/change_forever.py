"""Change a store at random until killed: `python -m tests.store.change_forever FOLDER SEED`."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from chaski.errors import ModelNotFoundError
from chaski.names import ModelName
from chaski.store.manifest import CONFIG, Manifest, ManifestLayer, media_type
from chaski.store.store import Store


def change(store: Store, chance: random.Random) -> None:
    one, other = (ModelName.parse(f"model{chance.randrange(3)}") for _ in range(2))
    action = chance.choice(["create", "create", "copy", "remove", "file"])
    try:
        if action == "copy":
            store.copy(one, other)
        elif action == "remove":
            store.remove(one)
        else:
            _create(store, one, chance, from_file=action == "file")
    except ModelNotFoundError:
        pass


def _create(store: Store, name: ModelName, chance: random.Random, from_file: bool) -> None:
    data = chance.randbytes(chance.choice([10, 100_000]))
    source = store.root / f"source-{os.getpid()}.gguf"
    source.unlink(missing_ok=True)
    source.write_bytes(data)
    with store.adding():
        digest = store.blobs.add_file(source) if from_file else store.blobs.add_stream([data[:5], data[5:]])
        config = store.blobs.add(b"{}")
        layers = (ManifestLayer(media_type("model"), digest, len(data)),)
        store.put(name, Manifest(ManifestLayer(CONFIG, config, 2), layers).encode())


def main() -> None:
    chance, store = random.Random(int(sys.argv[2])), Store(Path(sys.argv[1]))
    while True:
        change(store, chance)
        print(flush=True)


if __name__ == "__main__":
    main()
