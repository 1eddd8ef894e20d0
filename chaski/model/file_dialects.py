"""Translation of files of Ollama's converters to llama.cpp's names: a table with one row for each family.

Ollama's converters (one file per family in the folder `convert` of its repository) name some keys and tensors
differently, and omit values that the models of Ollama's own engine hard-code. All code after `open_model`
sees llama.cpp's names with nothing missing. Keys that a row does not mention are the same in both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile, GGUFValue, StringArray, TensorInfo, open_gguf

__all__ = ["DIALECTS", "Dialect", "in_our_names", "open_model"]

_TOKENIZER = "tokenizer.ggml."


class Dialect(Struct, frozen=True, kw_only=True):
    """The differences in files of one architecture. Keys are given without the architecture's name.

    architecture  llama.cpp's name for it; "" for the same name
    keys          a key → llama.cpp's; it takes precedence over a key that already has that name
    tensors       the beginning of a name, up to a dot, or a whole name → llama.cpp's; `*` is a number
    defaults      the meaning of a missing key; a key of the tokenizer is given with its whole name
    by_layers     number of layers → further defaults, for Ollama's files only
    not_meant     number of layers → keys that Ollama's files contain by mistake
    sizes         a key → the tensor whose columns it counts; the tensor decides if the key is missing, or
                  if the file is Ollama's
    in_turn       tensors that interleave the rows of several tensors, within each matrix of a stack: a name
                  as in `tensors` → the names of the parts
    left_out      prefixes of tensors that chaski does not use, such as those of an image encoder
    pre           the pre-tokenizer if the file names none, or `default`
    tokens_of     a tensor with a row for each text token; a longer vocabulary is cut to its length
    by_merges     the kind of tokenizer if the file contains merges
    token         an id and its token, without which `pre` does not apply
    """

    architecture: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, GGUFValue] = field(default_factory=dict)
    by_layers: Mapping[int, Mapping[str, GGUFValue]] = field(default_factory=dict)
    not_meant: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    in_turn: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    pre: str = ""
    tokens_of: str = ""
    by_merges: str = ""
    token: tuple[int, str] | None = None


_VISION = ("v.", "mm.")
_AUDIO = ("a.", "mm.a.")
_EXPERT_SIZE = {"expert_feed_forward_length": "blk.*.ffn_down_exps.weight"}
# Families built on Llama store this head size. They also store the number of rotated elements, but as it
# follows from the hidden size, which is wrong if heads are larger or smaller.
_HEADS = {"attention.head_dim": "rope.dimension_count"}
_YARN = {
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope.scaling.extrapolation_factor": "rope.scaling.yarn_ext_factor",
}
_EIGHTFOLD: Mapping[str, GGUFValue] = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
_GPT_OSS = Dialect(
    architecture="gpt-oss",
    tensors={
        "blk.*.attn_out.": "blk.*.attn_output.",
        "blk.*.attn_sinks": "blk.*.attn_sinks.weight",
        "blk.*.ffn_norm.": "blk.*.post_attention_norm.",
    },
    defaults={"rope.scaling.type": "yarn"},
    sizes=_EXPERT_SIZE,
    pre="gpt-4o",
)
_QWEN3VL = Dialect(
    keys={
        "rope.mrope_section": "rope.dimension_sections",
        "vision.shortest_edge": "vision.image_min_pixels",
        "vision.longest_edge": "vision.image_max_pixels",
    },
    tensors={
        "v.patch_embed.": "v.patch_embd.",
        "v.pos_embed.": "v.position_embd.",
        "v.blk.*.norm1.": "v.blk.*.ln1.",
        "v.blk.*.norm2.": "v.blk.*.ln2.",
        "v.blk.*.mlp.linear_fc1.": "v.blk.*.ffn_up.",
        "v.blk.*.mlp.linear_fc2.": "v.blk.*.ffn_down.",
        "v.merger.norm.": "v.post_ln.",
        "v.merger.linear_fc1.": "mm.0.",
        "v.merger.linear_fc2.": "mm.2.",
        "v.deepstack_merger.*.norm.": "v.deepstack.*.norm.",
        "v.deepstack_merger.*.linear_fc1.": "v.deepstack.*.fc1.",
        "v.deepstack_merger.*.linear_fc2.": "v.deepstack.*.fc2.",
    },
    sizes={"vision.feed_forward_length": "v.blk.*.ffn_down.weight"},
    pre="qwen2",
)
# Ollama's first Qwen 3.5 files store tensors for multi-token prediction under the checkpoint's names.
_QWEN35 = Dialect(
    keys={**_QWEN3VL.keys, "norm_top_k_prob": "expert_weights_norm"},
    tensors={**_QWEN3VL.tensors, "blk.*.ssm_dt": "blk.*.ssm_dt.bias"},
    sizes=_QWEN3VL.sizes,
    left_out=("mtp.",),
    pre="qwen35",
)

# Files written before llama.cpp settled on names for it.
_GEMMA4_ASSISTANT = Dialect(
    architecture="gemma4-assistant",
    keys={"n_embd_backbone": "embedding_length_out"},
    tensors={
        "mtp.pre_projection.": "nextn.pre_projection.",
        "mtp.post_projection.": "nextn.post_projection.",
        "mtp.centroids.": "masked_embd_centroids.",
        "mtp.token_ordering.weight": "masked_embd_ordering",
    },
)

_GEMMA3N = Dialect(
    keys={"head_dim": "attention.key_length", "rope.freq_base_local": "rope.freq_base_swa"},
    tokens_of="per_layer_token_embd.weight",
    left_out=(*_VISION, "a."),
)

DIALECTS: Mapping[str, Dialect] = {
    "gemma3": Dialect(
        keys={
            "rope.global.freq_base": "rope.freq_base",
            "rope.local.freq_base": "rope.freq_base_swa",
            **_YARN,
        },
        tensors={
            "v.patch_embedding.": "v.patch_embd.",
            "v.position_embedding.": "v.position_embd.",
            "v.post_layernorm.": "v.post_ln.",
            "v.blk.*.layer_norm1.": "v.blk.*.ln1.",
            "v.blk.*.layer_norm2.": "v.blk.*.ln2.",
            "v.blk.*.attn_output.": "v.blk.*.attn_out.",
            "v.blk.*.mlp.fc1.": "v.blk.*.ffn_up.",
            "v.blk.*.mlp.fc2.": "v.blk.*.ffn_down.",
            "mm.mm_input_projection.": "mm.input_projection.",
            "mm.mm_soft_emb_norm.": "mm.soft_emb_norm.",
        },
        defaults={
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "rope.freq_base": 1e6,
            # Ollama's engine puts no space in front of texts.
            f"{_TOKENIZER}add_space_prefix": False,
        },
        # The 1B was written with a logit bound that it does not have, the others without their rope scaling.
        by_layers={34: _EIGHTFOLD, 48: _EIGHTFOLD, 62: _EIGHTFOLD},
        not_meant={26: ("final_logit_softcapping",)},
    ),
    "gemma3n": _GEMMA3N,
    "gemma3n with an encoder of images": replace(_GEMMA3N, architecture="gemma3n", left_out=_AUDIO),
    "gemma4": Dialect(
        tensors={"blk.*.ffn_gate_inp.per_expert_scale": "blk.*.ffn_down_exps.scale"},
        by_merges="gemma4",  # the converter also names another tokenizer
        left_out=_AUDIO,
    ),
    "gemma4-assistant": _GEMMA4_ASSISTANT,
    "gemma4_assistant": _GEMMA4_ASSISTANT,
    "gpt-oss": _GPT_OSS,
    "gptoss": replace(
        _GPT_OSS, in_turn={"blk.*.ffn_gate_up_exps.": ("blk.*.ffn_gate_exps.", "blk.*.ffn_up_exps.")}
    ),
    "lfm2": Dialect(
        tensors={
            "output_norm.": "token_embd_norm.",
            "blk.*.attn_out.": "blk.*.attn_output.",
            "mm.layer_norm.": "mm.input_norm.",
        },
        # Some files contain the size before rounding.
        sizes={"feed_forward_length": "blk.*.ffn_down.weight"},
        pre="lfm2",
    ),
    "llama": Dialect(keys=_HEADS, pre="llama-bpe", token=(128009, "<|eot_id|>")),
    "llama4": Dialect(
        keys={**_HEADS, "vision.layer_norm_epsilon": "vision.attention.layer_norm_epsilon"},
        tensors={
            "v.class_embedding": "v.class_embd",
            "v.patch_embedding.": "v.patch_embd.",
            "v.positional_embedding_vlm": "v.position_embd.weight",
            "v.layernorm_pre.": "v.pre_ln.",
            "v.layernorm_post.": "v.post_ln.",
            "v.blk.*.attn_norm.": "v.blk.*.ln1.",
            "v.blk.*.attn_output.": "v.blk.*.attn_out.",
            "v.blk.*.ffn_norm.": "v.blk.*.ln2.",
            "v.blk.*.mlp.fc1.": "v.blk.*.ffn_up.",
            "v.blk.*.mlp.fc2.": "v.blk.*.ffn_down.",
            "v.vision_adapter.mlp.fc1.": "mm.model.mlp.1.",
            "v.vision_adapter.mlp.fc2.": "mm.model.mlp.2.",
            "mm.linear_1.": "mm.model.fc.",
        },
        pre="llama4",
    ),
    "mistral3": Dialect(
        keys={
            **_YARN,
            "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
            "rope.scaling_beta": "attention.temperature_scale",
        },
        tensors={
            "v.patch_conv.": "v.patch_embd.",
            "v.encoder_norm.": "v.pre_ln.",
            "v.blk.*.attn_norm.": "v.blk.*.ln1.",
            "v.blk.*.attn_output.": "v.blk.*.attn_out.",
            "v.blk.*.ffn_norm.": "v.blk.*.ln2.",
            "mm.norm.": "mm.input_norm.",
            "mm.patch_merger.merging_layer.": "mm.patch_merger.",
            "mm.linear_1.": "mm.1.",
            "mm.linear_2.": "mm.2.",
        },
        defaults={"spatial_merge_size": 2},
        pre="tekken",
    ),
    "mllama": Dialect(keys=_HEADS),
    "gemma3 with dense layers": Dialect(
        architecture="gemma-embedding",
        tensors={"dense.0.": "dense_2.", "dense.1.": "dense_3.", "norm.": "output_norm."},
        sizes={"dense_3_feat_in": "dense_3.weight"},
    ),
    "nomic-bert": Dialect(defaults={"rope.freq_base": 1000.0}),
    "qwen25vl": Dialect(
        architecture="qwen2vl",
        keys={
            "rope.mrope_section": "rope.dimension_sections",
            "vision.max_pixels": "vision.image_max_pixels",
        },
        tensors={
            "v.patch_embd_0.weight": "v.patch_embd.weight",
            "v.patch_embd_1.weight": "v.patch_embd.weight.1",
            "v.merger.ln_q.": "v.post_ln.",
            "v.merger.mlp.": "mm.",
        },
        defaults={"vision.projector_type": "qwen2.5vl_merger"},
        sizes={"vision.feed_forward_length": "v.blk.*.ffn_down.weight"},
        pre="qwen2",
    ),
    "qwen35": _QWEN35,
    "qwen35moe": replace(_QWEN35, sizes={**_QWEN35.sizes, **_EXPERT_SIZE}),
    "qwen3moe": Dialect(keys={"norm_top_k_prob": "expert_weights_norm"}, sizes=_EXPERT_SIZE),
    "qwen3vl": _QWEN3VL,
    "qwen3vlmoe": replace(
        _QWEN3VL,
        keys={**_QWEN3VL.keys, "norm_top_k_prob": "expert_weights_norm"},
        sizes={**_QWEN3VL.sizes, **_EXPERT_SIZE},
    ),
    "qwen3next": replace(_QWEN35, left_out=(), sizes=_EXPERT_SIZE, pre="qwen2"),
}
"""Dialects by `general.architecture`, for implemented architectures, and by the names in `_VARIANTS`."""

# The name in DIALECTS for files of an architecture that contain this tensor.
_VARIANTS = {
    ("gemma3", "dense.0.weight"): "gemma3 with dense layers",
    ("gemma3n", "v.msfa.norm.weight"): "gemma3n with an encoder of images",
}


def open_model(path: str | Path) -> GGUFFile:
    """Open the GGUF file of a model or a projector, from any converter, under llama.cpp's names.

    Raises the errors of `open_gguf` and `in_our_names`.
    """
    return in_our_names(open_gguf(path))


def in_our_names(file: GGUFFile) -> GGUFFile:
    """Return the same file as llama.cpp would have written it.

    Raises ModelError if two tensors would get one name or interleaved rows cannot be split, and GGUFError for
    a key of another type.
    """
    arch = file.get("general.architecture", str, "")
    found = (name for (of, tensor), name in _VARIANTS.items() if of == arch and tensor in file.tensors)
    variant = next(found, arch)
    dialect = DIALECTS.get(variant)
    if dialect is None:
        return file
    target = dialect.architecture or arch
    tensors = _tensors(file, dialect)
    values = _keys(file, dialect, f"{arch}.")
    is_foreign = tensors.keys() != file.tensors.keys() or not values.keys() >= _own(file, f"{arch}.")
    missing = {key: value for key, value in dialect.defaults.items() if not key.startswith("tokenizer.")}
    is_foreign |= not missing.keys() <= values.keys()
    values = missing | values
    for key, pattern in dialect.sizes.items():
        counted = _first(tensors, pattern)
        if counted is not None and (is_foreign or key not in values):
            values[key] = counted.shape[-1]
    layers = values.get("block_count")
    if is_foreign and isinstance(layers, int):
        values = {**dialect.by_layers.get(layers, {}), **values}
        values = {key: value for key, value in values.items() if key not in dialect.not_meant.get(layers, ())}
    metadata = {key: value for key, value in file.metadata.items() if not key.startswith(f"{arch}.")}
    metadata = {key: value for key, value in dialect.defaults.items() if key not in missing} | metadata
    metadata |= {f"{target}.{key}": value for key, value in values.items()}
    metadata["general.architecture"] = target
    if dialect.tokens_of in tensors:
        _cut_vocabulary(tensors, metadata, tensors[dialect.tokens_of].shape[0])
    if dialect.by_merges and f"{_TOKENIZER}merges" in metadata:
        metadata[f"{_TOKENIZER}model"] = dialect.by_merges
    if dialect.pre and _means_pre(file, dialect.token):
        metadata[f"{_TOKENIZER}pre"] = dialect.pre
    return GGUFFile(file.path, metadata, tensors)


def _cut_vocabulary(tensors: dict[str, TensorInfo], metadata: dict[str, GGUFValue], count: int) -> None:
    """Keep `count` tokens; those after them stand for images and sounds."""
    table = tensors.get("token_embd.weight")
    if table is None or table.shape[0] <= count:
        return
    tensors[table.name] = table.part(table.name, 0, slice(count))
    for key in ("tokens", "scores", "token_type"):
        values = metadata.get(f"{_TOKENIZER}{key}")
        if isinstance(values, np.ndarray):
            metadata[f"{_TOKENIZER}{key}"] = values[:count]
        elif isinstance(values, StringArray):
            metadata[f"{_TOKENIZER}{key}"] = values.first(count)


def _own(file: GGUFFile, prefix: str) -> set[str]:
    return {key.removeprefix(prefix) for key in file.metadata if key.startswith(prefix)}


def _keys(file: GGUFFile, dialect: Dialect, prefix: str) -> dict[str, GGUFValue]:
    """Return the architecture's own keys and values under llama.cpp's names, except omitted ones."""
    found = {key: file.metadata[prefix + key] for key in _own(file, prefix)}
    renamed = {new: found.pop(old) for old, new in dialect.keys.items() if old in found}
    of_tensors = {"a.": ("audio.",), "v.": ("audio.", "vision.", "mm.")}
    for key in [key for beginning in dialect.left_out for key in of_tensors.get(beginning, ())]:
        found = {name: value for name, value in found.items() if not name.startswith(key)}
    return found | renamed


def _tensors(file: GGUFFile, dialect: Dialect) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for info in _renamed(file, dialect):
        if info.name in tensors:
            raise ModelError(
                f"{info.path}: the file contains tensor {info.name} twice, once under another name"
            )
        tensors[info.name] = info
    return tensors


def _renamed(file: GGUFFile, dialect: Dialect) -> Iterator[TensorInfo]:
    renames = {old: (new,) for old, new in dialect.tensors.items()} | dict(dialect.in_turn)
    renaming = [_rename(old, new) for old, new in renames.items()]
    for name, info in file.tensors.items():
        if name.startswith(dialect.left_out):
            continue
        names = next((found for rename in renaming if (found := rename(name))), (name,))
        if len(names) > 1:
            yield from _taken_in_turn(info, names)
        else:
            yield info if names == (name,) else dataclasses.replace(info, name=names[0])


def _taken_in_turn(info: TensorInfo, names: Sequence[str]) -> Iterator[TensorInfo]:
    if len(info.shape) < 2 or info.shape[1] % len(names):
        wanted = " and ".join(names)
        raise ModelError(f"{info.path}: tensor {info.name} {info.shape} cannot interleave {wanted}")
    for first, name in enumerate(names):
        yield info.part(name, 1, slice(first, None, len(names)))


def _rename(old: str, new: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a function that renames names that match `old`, which is a prefix if it ends with a dot.

    It returns llama.cpp's names, or none for a name that does not match.
    """
    pattern = _pattern(old)
    templates = [name.replace("*", r"\1") for name in new]

    def rename(name: str) -> tuple[str, ...]:
        match = pattern.match(name)
        return () if match is None else tuple(match.expand(new) + name[match.end() :] for new in templates)

    return rename


def _pattern(name: str) -> re.Pattern[str]:
    end = "" if name.endswith(".") else r"\Z"
    return re.compile(re.escape(name).replace(r"\*", r"(\d+)") + end)


def _first(tensors: Mapping[str, TensorInfo], name: str) -> TensorInfo | None:
    """Return the first tensor whose name matches, or None."""
    pattern = _pattern(name)
    return next((info for key, info in tensors.items() if pattern.match(key)), None)


def _means_pre(file: GGUFFile, token: tuple[int, str] | None) -> bool:
    """Return whether a file names no pre-tokenizer and contains the token that identifies its family."""
    if file.get(f"{_TOKENIZER}model", str, "") != "gpt2":
        return False
    if file.get(f"{_TOKENIZER}pre", str, "") not in ("", "default"):
        return False
    if token is None:
        return True
    tokens, (index, text) = file.get(f"{_TOKENIZER}tokens", list[str], ()), token
    return len(tokens) > index and tokens[index] == text
