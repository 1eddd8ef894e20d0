"""Models on disk: a store in Ollama's layout, and operations that add, read and remove models.

    <models>/manifests/<host>/<namespace>/<model>/<tag> the list of a model's blobs <models>/blobs/sha256-<64
    hex> files named by their content, never changed

This package handles files and HTTP only. Higher layers interpret the blobs. Reading never writes.

Guarantees: even after a crash, a name refers to a complete model or does not exist. A blob gets its name only
after its bytes were hashed and written to disk. Several chaski processes may share a store, and Ollama may
use it while chaski does not.
"""

from __future__ import annotations
