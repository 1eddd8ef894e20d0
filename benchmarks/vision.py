"""How long it takes to encode one image of 896 x 896 on the shape of Gemma 3's SigLIP, beside the peak.

    python -m benchmarks.vision [--type Q8_0 F16] [--threads 2]

27 layers of 1152, 16 heads of 72, 4096 patches, 256 rows of 2560. Random weights: the file is made in a
temporary folder. Multiply-adds of the matrices count at the machine's peak for their type, those of attention
at that for float32, which its kernels compute in. Both peaks are measured beside it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from benchmarks.random_blocks import random_rows
from benchmarks.roofline import measure, product_rate
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import LazyTensor, MetadataValue, write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import BackendOptions, open_backend
from chaski.ml.graph import DType
from chaski.model.arch.gemma3.vision import Vision
from chaski.model.encoder import EncoderProgram
from chaski.model.weights import bind_weights

SIZE, HIDDEN, LAYERS, HEADS, IMAGE, PATCH, ROW = 1152, 4304, 27, 16, 896, 14, 2560
PATCHES = (IMAGE // PATCH) ** 2
METADATA: dict[str, MetadataValue] = {
    "general.architecture": "clip",
    "clip.projector_type": "gemma3",
    "clip.vision.block_count": LAYERS,
    "clip.vision.embedding_length": SIZE,
    "clip.vision.feed_forward_length": HIDDEN,
    "clip.vision.image_size": IMAGE,
    "clip.vision.patch_size": PATCH,
    "clip.vision.attention.head_count": HEADS,
    "clip.vision.attention.layer_norm_epsilon": 1e-6,
}


def main() -> None:
    """Encode a few times with weights of each type and print the best."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--type", nargs="+", default=["Q8_0", "F16"], choices=["Q8_0", "F16", "BF16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2)
    arguments = parser.parse_args()
    limits = measure(arguments.threads)[-1]
    attention = 2 * PATCHES**2 * SIZE * LAYERS
    for name in arguments.type:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "eyes.gguf"
            matrices = _write(path, name)
            seconds = _encode(path, arguments.threads, arguments.repeat)
        kind = "int8" if name == "Q8_0" else "bf16" if name == "BF16" else "fp32"
        least = matrices / product_rate(limits, kind) + attention / limits.fp32
        print(
            f"{name}: {seconds:.2f} s; {matrices / 1e12:.2f} + {attention / 1e12:.2f} tera multiply-adds "
            f"take {least:.2f} s at the peak: {least / seconds:.0%} of it"
        )


def _encode(path: Path, threads: int, repeat: int) -> float:
    file = open_gguf(path)
    vision: Any = Vision(file, ROW)
    backend = open_backend("cpu", BackendOptions(threads=threads))
    bind_weights(vision, file, backend, lambda share: None)
    program = EncoderProgram(vision, backend, DType.F16)
    image = vision.image(np.random.default_rng(1).uniform(-1, 1, (IMAGE, IMAGE, 3)).astype(np.float32))
    times = []
    for _ in range(repeat):
        start = perf_counter()
        rows = program.encode(image)
        times.append(perf_counter() - start)
        assert np.isfinite(rows).all()
    return min(times)


def _write(path: Path, type_name: str) -> int:
    """The file -> the multiply-adds of its matrices for an image."""
    with_bias = {"v.patch_embd": (SIZE, 3, PATCH, PATCH), "v.post_ln": (SIZE,)}
    for layer in range(LAYERS):
        block = f"v.blk.{layer}"
        with_bias |= {f"{block}.attn_{part}": (SIZE, SIZE) for part in ("q", "k", "v", "out")}
        with_bias |= {f"{block}.ffn_up": (HIDDEN, SIZE), f"{block}.ffn_down": (SIZE, HIDDEN)}
        with_bias |= {f"{block}.ln1": (SIZE,), f"{block}.ln2": (SIZE,)}
    shapes = {f"{name}.weight": shape for name, shape in with_bias.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in with_bias.items()}
    shapes |= {"v.position_embd.weight": (PATCHES, SIZE), "mm.soft_emb_norm.weight": (SIZE,)}
    shapes["mm.input_projection.weight"] = (SIZE, ROW)
    write_gguf(path, METADATA, {name: _tensor(name, shape, type_name) for name, shape in shapes.items()})
    products = sum(shape[0] * shape[1] for shape in shapes.values() if len(shape) == 2)
    return PATCHES * (products - PATCHES * SIZE - SIZE * ROW) + PATCHES * SIZE * 3 * PATCH**2


def _tensor(name: str, shape: tuple[int, ...], type_name: str) -> LazyTensor:
    random = np.random.default_rng(len(name))
    if len(shape) != 2 or "position" in name:
        spread = 0.02 if "weight" not in name or len(shape) > 1 else 0.0
        values = (random.standard_normal(shape) * spread + (len(shape) == 1) * ("weight" in name)).astype(
            "<f4"
        )
        return LazyTensor(shape, QuantType.F32, lambda: [values.view(np.uint8).ravel()])
    # Rows that are not whole blocks, and what is kept transposed, are F16 as `chaski convert` writes them.
    kind = QuantType[type_name]
    if shape[1] % kind.block_size or name.startswith("mm."):
        kind = QuantType.F16
    rows = random_rows(GGMLQuantizationType(int(kind)), *shape, random)
    return LazyTensor(shape, kind, lambda: [np.ascontiguousarray(rows).view(np.uint8).ravel()])


if __name__ == "__main__":
    main()
