"""Write chaski/cli/measured.json: facts about each architecture from running the tiny models of tests/data.

    PYTHONPATH=. python -m tools.measure_models [--new]

It records two differences: of logits (or embeddings, for models without text output) from those of
transformers, which are stored next to the models; and of the scores of the likeliest tokens from llama.cpp's,
if it can load the file (needs xllamacpp). It also records whether models accept pictures, accept proposed
tokens, and return embeddings if their file names a pooling.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import chaski
from chaski.cli.model_table import MEASURED
from chaski.convert.convert import convert
from chaski.errors import ChaskiError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.runner.channels.worker.client import Worker
from chaski.runner.llm import LLM
from tests import cogvlm, deepseek_ocr, families, mobilenet, t5, tiny_vision
from tests.convert import checkpoints
from tests.gemma4 import prompts as gemma4
from tests.image.pictures import png
from tests.llava import prompts as llava
from tests.mllama import prompts as mllama
from tests.rewriting import all_tensors
from tests.tiled import prompts as tiled

__all__ = ["Measured", "measured_rows"]

Measured = dict[str, Any]
DATA = Path(__file__).parents[1] / "tests" / "data"
LENGTHS = (1, 5, 33, 70, 90)
_MEAN = 1  # as `pooling_type`
_SEEING: dict[str, Any] = {"seeing-cogvlm": cogvlm, "seeing-deepseek-ocr": deepseek_ocr}
# Prefixes of keys that are removed for the comparison with llama.cpp, and keys that are set, so that both
# compute the same. llama.cpp has no windows in Phi 3, has chunks of 8,192 tokens in Llama 4 (temperatures
# too), and rounds the bounds of YaRN's ramp, unlike gpt-oss.
_LEFT_OUT = ("gpt-oss.rope.scaling.", "llama4.attention.temperature_")
_SET = {
    "llama4": {"llama4.attention.chunk_size": 8192},
    "jina-bert-v2": {"tokenizer.ggml.token_type_count": 2},
    "nomic-bert": {"tokenizer.ggml.token_type_count": 2},
    "nomic-bert-moe": {"tokenizer.ggml.token_type_count": 2},
    "phi3": {"phi3.attention.sliding_window": 0},
}


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the architecture and the file of each tiny model; checkpoints are converted first."""
    paths = [*DATA.glob("architectures/*.gguf"), *DATA.glob("embedders/*.gguf")]
    paths += [DATA / "llama" / f"{name}.f32.gguf" for name in ("llama2", "llama31", "biased")]
    paths += [
        DATA / "vision" / f"{name}.gguf"
        for name in (
            "gemma3",
            "hunyuanvl",
            "kimivl",
            "mistral3",
            "paddleocr",
            "qwen2vl",
            "qwen3vl",
            "qwen3vlmoe",
            "qwen35",
            "qwen35moe",
        )
    ]
    for name in ("llava", "mllama"):
        paths.append(folder / f"{name}.gguf")
        convert(DATA / name, paths[-1], "F32")
    (folder / "embedders").mkdir()
    for name in checkpoints.EMBEDDERS:
        if not (DATA / "embedders" / f"{name}.gguf").exists():
            paths.append(folder / "embedders" / f"{name}.gguf")
            convert(checkpoints.DATA / name, paths[-1], "F32")
    for source in DATA.glob("tiled/*"):
        (folder / "tiled").mkdir(exist_ok=True)
        paths.append(folder / "tiled" / f"{source.name}.gguf")
        convert(source, paths[-1], "F32")
    (folder / "gemma4").mkdir()
    for name in gemma4.NAMES:
        paths.append(folder / "gemma4" / f"{name}.gguf")
        convert(DATA / "gemma4" / name, paths[-1], "F32")
    paths += _with_encoders(folder)
    paths += [families.converted(name) for name in [*families.VARIANTS, *families.EMBEDDERS]]
    paths += [t5.converted(name, folder / "t5" / name) for name in t5.VARIANTS]
    for path in sorted(paths):
        # The processor rounds activations for matrices of this type; the others are in float32.
        if not path.stem.endswith("mxfp4"):
            with open_gguf(path) as file:
                yield file.architecture, path


def _with_encoders(folder: Path) -> Iterator[Path]:
    """Yield the files of random checkpoints with encoders of images, converted in folders of their names."""
    for name in mobilenet.NAMES:
        mobilenet.checkpoint(folder / "mobilenet" / "in" / name, mobilenet.expected(name)["about"])
        convert(folder / "mobilenet" / "in" / name, folder / "mobilenet" / f"{name}.gguf", "F32")
        yield folder / "mobilenet" / f"{name}.gguf"
    for family, seeing in _SEEING.items():
        for name in seeing.NAMES:
            seeing.checkpoint(folder / family / "in" / name, name)
            convert(folder / family / "in" / name, folder / family / f"{name}.gguf", "F32")
            yield folder / family / f"{name}.gguf"


def measure(architecture: str, path: Path, *, with_llama_cpp: bool) -> Measured:
    """Return all facts about a model."""
    # Prompts with tiles are longer. Phi's LongRoPE is measured at its trained context.
    context = {"tiled": 192, "mobilenet": 256, "seeing-deepseek-ocr": 192}.get(path.parent.name, 128)
    with chaski.load(path, context=context, kv_type="f32") as model:
        makes_text = model.pooling is None
        found: Measured = {
            "text": makes_text,
            "pictures": model.has_vision,
            "embeddings": not makes_text or _embeds(architecture, path),
            "speculation": makes_text and model.engine.most_proposed > 0,
            _oracle(path): difference_from_oracle(path, model),
        }
    # llama.cpp has no files that include an image encoder.
    is_asked = with_llama_cpp and not found["pictures"] and "llama.cpp" not in found
    # llama.cpp returned a number of 4e38 for MiniCPM 3, whose cause is not known.
    if is_asked and (difference := difference_from_llama_cpp(path)) is not None and difference < 1e9:
        found["llama.cpp"] = difference
    return found


def _oracle(path: Path) -> str:
    """Return whose logits are stored for a tiny model."""
    family, variant = path.parent.parent.name, path.parent.name
    if family in families.NAMES:
        return str(families.settings_of(family)[variant].get("oracle", "transformers"))
    return "transformers"


def difference_from_oracle(path: Path, model: LLM) -> float:
    """Return the largest difference in float32."""
    pairs = {
        "vision": _sights,
        "embedders": _embeddings,
        "llama": _longest,
        "tiled": _tiles,
        "gemma4": _gemma4,
        "mobilenet": _mobilenet,
        **dict.fromkeys(_SEEING, _seeing),
    }.get(path.parent.name)
    if path.stem in ("llava", "mllama"):
        pairs = _conversations
    if path.parent.parent.name in families.NAMES:
        pairs = _family
    if path.parent.parent.name == "t5":
        pairs = _t5
    return max(float(np.abs(found - wanted).max()) for found, wanted in (pairs or _prompt)(path, model))


def difference_from_llama_cpp(path: Path) -> float | None:
    """Return the largest difference of the scores of 20 tokens after several prompts, or of embeddings.

    None if llama.cpp cannot load the file.
    """
    with TemporaryDirectory() as folder, open_gguf(path) as file:
        alike = Path(folder) / path.name
        kept = {key: value for key, value in file.metadata.items() if not key.startswith(_LEFT_OUT)}
        tensors = dict(all_tensors(file))
        if file.architecture != "gemma-embedding":  # llama.cpp knows only its dense layers
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("dense_")}
        write_gguf(alike, {**kept, **_SET.get(file.architecture, {})}, tensors)
        try:
            embeds = (
                path.parent.name == "embedders"
                or f"{path.parent.parent.name}/{path.parent.name}" in families.EMBEDDERS
            )
            with Worker(alike, engine="llama.cpp", parallel=1, threads=1, context=256) as worker:
                return (_unlike_vectors if embeds else _unlike_scores)(alike, worker)
        except ChaskiError as error:
            print(f"{path.name}: {str(error)[:200]}")
            return None


def _unlike_vectors(path: Path, other: Worker) -> float:
    texts = ["the other end in the", "x"]
    with chaski.load(path) as model:
        found = np.asarray(model.embed(texts))
    return float(np.abs(found - np.asarray(other.embed(texts))).max())


def _unlike_scores(path: Path, other: Worker) -> float | None:
    with chaski.load(path, context=256, kv_type="f32") as model:
        ids = np.random.default_rng(3).integers(3, model.vocab_size, max(LENGTHS)).tolist()
        logits = np.asarray(model.logits(ids), np.float64)
    scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    options: dict[str, Any] = {"temperature": 0, "num_predict": 1, "logprobs": True, "top_logprobs": 20}
    differences = [
        abs(token.logprob - float(scores[length - 1, token.token_id]))
        for length in LENGTHS
        for first in (other.generate(ids[:length], **options).logprobs or ())[:1]  # or none
        for token in first.top_logprobs or ()
    ]
    return max(differences, default=None)


_Pairs = Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]


def _prompt(path: Path, model: LLM) -> _Pairs:
    with np.load(path.with_suffix(".npz")) as wanted:
        yield np.asarray(model.logits(wanted["ids"].tolist())), wanted["logits"]


def _family(path: Path, model: LLM) -> _Pairs:
    variant = f"{path.parent.parent.name}/{path.parent.name}"
    wanted = families.expected(variant)
    if variant in families.EMBEDDERS:
        yield np.asarray(model.embed(families.texts(variant))), wanted["vectors"]
        return
    yield np.asarray(model.logits(wanted["prompt"].tolist()))[wanted["places"]], wanted["logits"]


def _t5(path: Path, model: LLM) -> _Pairs:
    wanted = t5.known()[path.parent.name]
    found = t5.logits_after(model, wanted["prompt"].tolist(), wanted["tokens"].tolist())
    yield found[wanted["places"]], wanted["logits"]


def _longest(path: Path, model: LLM) -> _Pairs:
    with np.load(path.with_name(f"{path.stem.removesuffix('.f32')}.npz")) as wanted:
        yield np.asarray(model.logits(wanted["ids_90"].tolist())), wanted["logits_90"]


def _embeddings(path: Path, model: LLM) -> _Pairs:
    if not path.with_suffix(".npz").exists():
        wanted = checkpoints.expected(path.stem)
        found = np.asarray(model.embed([ids for _, ids in wanted["ids"]]))
        yield found, wanted["vectors"] / np.linalg.norm(wanted["vectors"], axis=1, keepdims=True)
        return
    with np.load(path.with_suffix(".npz")) as wanted:
        for length in (1, 7, 90):
            mean = wanted[f"mean_{length}"]
            (vector,) = model.embed([wanted["ids"][:length].tolist()])
            yield np.asarray(vector), mean / np.linalg.norm(mean)


def _sights(path: Path, model: LLM) -> _Pairs:
    with np.load(path.with_suffix(".npz")) as wanted:
        if path.stem == "gemma3":
            for prompt, text in tiny_vision.PROMPTS.items():
                found = np.asarray(model.logits(text, tiny_vision.images("gemma3", prompt)))
                yield found[wanted[f"{prompt}.places"]], wanted[f"{prompt}.logits"]
            return
        prompts = ("odd", "tall", "tiny", "two", "text")
        for prompt in (prompt for prompt in prompts if f"{prompt}/text" in wanted):
            pictures = [png(*size) for size in wanted.get(f"{prompt}/sizes", [])]
            found = np.asarray(model.logits(str(wanted[f"{prompt}/text"]), pictures))
            yield found[wanted[f"{prompt}/places"]], wanted[f"{prompt}/logits"]


def _tiles(path: Path, model: LLM) -> _Pairs:
    with np.load(DATA / "tiled" / path.stem / "expected.npz") as wanted:
        for name, (text, pictures) in tiled.TEXTS.items():
            found = np.asarray(model.logits(text, [png(*tiled.SIZES[each]) for each in pictures]))
            yield found[wanted[f"{name}.places"]], wanted[f"{name}.logits"]


def _mobilenet(path: Path, model: LLM) -> _Pairs:
    wanted = mobilenet.expected(path.stem)
    for name, (text, pictures) in mobilenet.PROMPTS.items():
        found = np.asarray(model.logits(text, [png(*mobilenet.SIZES[each]) for each in pictures]))
        yield found[wanted[f"{name}.places"]], wanted[f"{name}.logits"]


def _seeing(path: Path, model: LLM) -> _Pairs:
    family = _SEEING[path.parent.name]
    for name in family.PROMPTS:
        text, sizes = family.given(name)
        found = np.asarray(model.logits(text, [png(*size) for size in sizes]))
        yield found[:: family.STEP], family.expected()[f"{path.stem}/{name}.logits"]


def _gemma4(path: Path, model: LLM) -> _Pairs:
    with np.load(DATA / "gemma4" / path.stem / "expected.npz") as wanted:
        for name, (text, sizes) in gemma4.PROMPTS.items():
            found = np.asarray(model.logits(text, [png(*size) for size in sizes]))
            yield found[wanted[f"{name}.places"]], wanted[f"{name}.logits"]


def _conversations(path: Path, model: LLM) -> _Pairs:
    prompts = llava if path.stem == "llava" else mllama
    with np.load(DATA / path.stem / "expected.npz") as wanted:
        for name, (text, pictures) in prompts.TEXTS.items():
            found = np.asarray(model.logits(text, [png(*prompts.SIZES[each]) for each in pictures]))
            yield found, wanted[f"{name}.logits"]


def _embeds(architecture: str, path: Path) -> bool:
    """Return whether the model makes embeddings once its file names a pooling."""
    with TemporaryDirectory() as folder, open_gguf(path) as file:
        pooled = Path(folder) / "pooled.gguf"
        metadata = {**file.metadata, f"{architecture}.pooling_type": _MEAN}
        write_gguf(pooled, metadata, all_tensors(file))
        try:
            with chaski.load(pooled, context=128) as model:
                return len(model.embed([[5, 6, 7]])[0]) == file.get(f"{architecture}.embedding_length", int)
        except ChaskiError as error:
            print(f"{path.name}: {str(error)[:200]}")
            return False


def merged(several: list[Measured]) -> Measured:
    """Return the facts of an architecture: its largest differences, and its models' abilities.

    Models of the same architecture may have an image encoder or not.
    """
    found: Measured = {"text": all(each["text"] for each in several)}
    found["pictures"] = any(each["pictures"] for each in several)
    for ability in ("embeddings", "speculation"):
        found[ability] = all(each[ability] for each in several)
    for oracle in ("transformers", "llama.cpp"):
        if differences := [each[oracle] for each in several if oracle in each]:
            found[oracle] = _rounded_up(max(differences))
    return found


def _rounded_up(value: float) -> float:
    """Round up to one digit."""
    unit = 10.0 ** math.floor(math.log10(value))
    return float(f"{math.ceil(value / unit) * unit:.0e}")


def measured_rows(*, with_llama_cpp: bool, known: Collection[str] = ()) -> dict[str, Measured]:
    """Return the facts of every architecture that is not among the known ones."""
    found = defaultdict(list)
    with TemporaryDirectory() as folder:
        for architecture, path in models(Path(folder)):
            if architecture in known:
                continue
            found[architecture].append(measure(architecture, path, with_llama_cpp=with_llama_cpp))
    return {name: merged(several) for name, several in sorted(found.items())}


def main() -> None:
    """Measure all models, or with --new those that have no row yet."""
    if find_spec("xllamacpp") is None:
        raise SystemExit("xllamacpp is not installed, so its column would be lost")
    rows: dict[str, Measured] = json.loads(MEASURED.read_text()) if "--new" in sys.argv[1:] else {}
    rows |= measured_rows(with_llama_cpp=True, known=rows)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
    MEASURED.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
