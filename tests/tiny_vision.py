"""The tiny vision models of tools/fixtures/make_vision.py, and transformers' results for them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.model.file_dialects import open_model
from chaski.model.multimodal import Image
from chaski.model.registry import build_model, vision_of
from tests.rewriting import all_tensors

__all__ = [
    "DATA",
    "PROMPTS",
    "expected",
    "image",
    "images",
    "pixels",
    "write_projector",
    "write_text_part",
]

DATA = Path(__file__).parent / "data" / "vision"
# As in the script, a placeholder stands for an image.
PROMPTS = {
    "text": "The runner carries the message over the mountains.",
    "one": "The runner carries\n[img-0]the load over the mountains, and the llama 0 1 12 123.",
    "two": "the[img-1]llama[img-0]Zahlen 0 1 12 123 1234[img-1]",
    "side by side": "[img-0][img-1]carries the load",
}


@cache
def expected(name: str) -> dict[str, NDArray[Any]]:
    with np.load(DATA / f"{name}.npz") as arrays:
        return dict(arrays)


def pixels(name: str, index: int) -> NDArray[np.float32]:
    """Return normalized pixels (size, size, 3) of the script's two images, and of any number of others."""
    known = expected(name)["images"].transpose(0, 2, 3, 1)
    if index < len(known):
        return np.asarray(known[index])
    return np.random.default_rng(index).uniform(-1, 1, known[0].shape).astype(np.float32)


@cache
def image(name: str, index: int) -> Image:
    """Return the image in the encoder's form."""
    with open_model(DATA / f"{name}.gguf") as file:
        vision: Any = vision_of(build_model(file))
        found: Image = vision.image(pixels(name, index))
        return found


def images(name: str, prompt: str) -> list[Image]:
    """Return the images of one of the prompts."""
    return [image(name, index) for index in range(2) if f"[img-{index}]" in PROMPTS[prompt]]


def write_text_part(source: Path, path: Path) -> Path:
    """Write the same model without its encoder."""
    with open_gguf(source) as file:
        metadata = {
            key: value for key, value in file.metadata.items() if ".vision." not in key and ".mm." not in key
        }
        tensors = {
            name: tensor for name, tensor in all_tensors(file).items() if not name.startswith(("v.", "mm."))
        }
        write_gguf(path, metadata, tensors)
    return path


def write_projector(source: Path, path: Path) -> Path:
    """Write the encoder of Qwen's later models as llama.cpp's projector, like the converter."""
    with open_gguf(source) as file:
        own = file.architecture
        keys = {key: value for key, value in file.metadata.items() if ".vision." in key}
        metadata: dict[str, Any] = {key.replace(f"{own}.", "clip."): value for key, value in keys.items()}
        metadata |= {"clip.projector_type": metadata.pop("clip.vision.projector_type")}
        metadata |= {"general.architecture": "clip", "general.type": "mmproj"}
        metadata |= {"clip.has_vision_encoder": True, "clip.use_gelu": True, "clip.vision.image_size": 56}
        metadata |= {f"clip.vision.image_{name}": [0.5] * 3 for name in ("mean", "std")}
        metadata["clip.vision.projection_dim"] = file.get(f"{own}.embedding_length", int)
        tensors = {name: t for name, t in all_tensors(file).items() if name.startswith(("v.", "mm."))}
        write_gguf(path, metadata, tensors)
    return path


def logits(path: Path, prompt: str, name: str = "gemma3", **options: Any) -> NDArray[np.float32]:
    """Return the logits of every token, including images."""
    settings: dict[str, Any] = {"context": 128, "threads": 1, **options}
    with chaski.load(path, **settings) as model:
        return np.asarray(model.logits(PROMPTS[prompt], images(name, prompt)))
