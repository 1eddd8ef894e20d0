"""`AdapterBase`: the facts about an adapter's base model that the conversion needs.

The base is a checkpoint folder, with or without weights, or a GGUF file, from whose sizes the checkpoint's
configuration is derived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from msgspec import Struct, field

from chaski.convert.checkpoint import open_weights, text_settings
from chaski.convert.config import Config, read_config
from chaski.convert.families import find_family
from chaski.convert.family import Family
from chaski.convert.tensors import Planned, TensorShape
from chaski.errors import ModelError, ModelNotFoundError, UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.safetensors import INDEX_NAME, SINGLE_NAME

__all__ = ["AdapterBase"]

# Checkpoint architectures whose tensor names and row order can be derived from a GGUF file's sizes.
_CHECKPOINTS = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral3": "Ministral3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
_SIZES = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
# An upper limit, far above the layers or experts of any model.
_MOST = 1024


class AdapterBase(Struct, frozen=True):
    """config: the text model's own settings. names: the plain names of the tensors known to exist.

    shapes: the tensors of a GGUF file by name; empty for a folder.
    """

    config: Config
    family: Family
    names: Set[str]
    shapes: Mapping[str, TensorShape] = field(default_factory=dict)

    @classmethod
    def open(cls, base: Path | GGUFFile, changed: Set[str]) -> AdapterBase:
        """Open a folder or a GGUF file. The GGUF file may already be open.

        changed: the plain names of weights that the adapter changes.
        Raises ModelError, FormatError, ModelNotFoundError or UnsupportedError.
        """
        if isinstance(base, GGUFFile):
            return cls._of_file(base, changed)
        if base.is_file():
            with open_gguf(base) as file:
                return cls._of_file(file, changed)
        if not base.is_dir():
            raise ModelNotFoundError(f"{base}: no such file or folder")
        config = read_config(base)
        family = find_family(config)
        has_weights = any((base / name).is_file() for name in (SINGLE_NAME, INDEX_NAME))
        names = open_weights(config, base).tensors.keys() if has_weights else changed
        return cls(text_settings(config, family, names).within(max(_MOST, len(names))), family, names)

    @classmethod
    def _of_file(cls, file: GGUFFile, changed: Set[str]) -> AdapterBase:
        architecture = file.architecture
        if architecture not in _CHECKPOINTS:
            known = ", ".join(_CHECKPOINTS)
            raise UnsupportedError(
                f"{file.path}: an adapter of {architecture!r:.80} needs the config.json of its base; a GGUF "
                f"file is enough for {known}"
            )
        sizes = {key: file.get(f"{architecture}.{name}", int, None) for key, name in _SIZES.items()}
        shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
        values = sizes | {
            "architectures": [_CHECKPOINTS[architecture]],
            "vocab_size": shapes.get("token_embd.weight", (0,))[0],
            "tie_word_embeddings": "output.weight" not in shapes,
        }
        config = Config(file.path, values, _MOST)
        family = find_family(config)
        return cls(text_settings(config, family, changed).within(_MOST), family, changed, shapes)

    @property
    def architecture(self) -> str:
        return self.family.architecture

    def plan(self) -> Iterator[Planned]:
        """Yield the planned tensors of the text model."""
        return self.family.tensors(self.config, self.names)

    def check(self, planned: Planned) -> None:
        """Raise ModelError if the GGUF file lacks a tensor or has it in another shape."""
        found = self.shapes.get(planned.name)
        if self.shapes and found != planned.shape:
            raise ModelError(
                f"{self.config.path}: tensor {planned.name!r} has shape {found}, but the file's sizes "
                f"require {planned.shape}"
            )
