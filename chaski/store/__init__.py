"""Models on the disk: a store in Ollama's layout, what is in it, and how models come into it and leave it.

    <models>/manifests/<host>/<namespace>/<model>/<tag>    which blobs a model is made of
    <models>/blobs/sha256-<64 hex>                         files named by their content, never changed

Pure file work and HTTP; what the blobs mean to an engine is decided above. Reading never writes.

Promises: a name is seen whole or not at all, whenever a process dies. A blob has its name only after its
bytes are on disk and were hashed. Processes of chaski may share a store, and Ollama may use it in turns
with them.
"""

from __future__ import annotations
