"""The guide as a GGUF file: written with the gguf package, read back for checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from numpy.typing import NDArray

from tools.guide.topics import BOS, CHAT_TEMPLATE, END
from tools.guide.vocabulary import Vocabulary, merges

__all__ = ["Shape", "read_weights", "write_guide"]

Weights = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the guide. Each matrix has rows of a multiple of 32, as Q8_0 wants them."""

    vocab_size: int
    context_length: int = 1024
    hidden_size: int = 256
    ffn_size: int = 768
    num_layers: int = 3
    num_heads: int = 8
    num_kv_heads: int = 8
    head_size: int = 32
    rope_base: float = 10_000.0
    eps: float = 1e-5


def write_guide(path: Path, shape: Shape, weights: Weights, vocabulary: Vocabulary) -> None:
    """Write metadata, vocabulary and weights: matrices in Q8_0, norms in F32."""
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer)
    _sizes(writer, shape)
    _vocabulary(writer, vocabulary)
    for name, weight in weights.items():
        kind = GGMLQuantizationType.Q8_0 if weight.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """All tensors of a file as float32, in the shape (rows, columns)."""
    tensors = gguf.GGUFReader(path).tensors
    return {
        t.name: gguf.dequantize(t.data, t.tensor_type)
        .astype(np.float32)
        .reshape(tuple(reversed(t.shape.tolist())))
        for t in tensors
    }


def _describe(writer: gguf.GGUFWriter) -> None:
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name("chaski guide")
    writer.add_basename("guide")
    writer.add_author("The chaski authors")
    writer.add_version("2")
    writer.add_license("MIT")
    writer.add_description("Offline help of chaski: short answers to short questions about using it")
    writer.add_languages(["en"])
    writer.add_tags(["text-generation"])
    writer.add_size_label("6.1M")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _sizes(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.ffn_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocab_size)


def _vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    tokens, control = vocabulary.tokens, vocabulary.tokenizer.get_added_tokens_decoder()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    kinds = [TokenType.CONTROL if i in control else TokenType.NORMAL for i in range(len(tokens))]
    writer.add_token_types(kinds)
    writer.add_token_merges(merges(vocabulary.tokenizer))
    writer.add_bos_token_id(tokens.index(BOS))
    writer.add_eos_token_id(tokens.index(END))
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
