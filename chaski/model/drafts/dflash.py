"""DFlash (Chen et al. 2026, arXiv 2602.06036): a draft that proposes a block of tokens at once.

The hidden states of some of the target's layers are fused to one row. From these rows each layer of the
draft computes keys and values of all tokens that the target has computed. A block is the last token and the
masks after it. It attends to these keys and to all of its own, and predicts a token at each mask. Its own
keys are not kept.

In layers with a window the tokens of a block do not see later ones, as published drafts were trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm, SwiGLU, attention
from chaski.model.arch import llama, qwen3
from chaski.model.arch.gpt_oss import Sinks
from chaski.model.architecture import Architecture
from chaski.model.attached import BlockDraft, Target
from chaski.model.config import DecoderConfig, sliding_layers
from chaski.model.input import HiddenStates, Inputs

ARCHITECTURE = Architecture(
    "dflash",
    "DFlash drafts",
    reads=("attention.sliding_window", "embedding_scale", "final_logit_softcapping", "logit_scale"),
)


__all__ = ["Draft"]

_USUAL_BLOCK = 16
_OTHERS = {
    "markov_w1.weight": "the markov head of DSpark",
    "selector_hidden.weight": "the selector and convolutions of DFlash 2",
    "hc_head_fn.weight": "the hyper-connections of DeepSeek V4's DSpark",
}
"""Tensors of extensions of DFlash, and the extensions that they belong to."""


class Attention(qwen3.Attention):
    def __init__(self, config: DecoderConfig, has_sinks: bool) -> None:
        super().__init__(config)
        if has_sinks:
            self.attn_sinks = Sinks(config.num_heads)

    def keys_and_values(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values that the cache stores, as `Layer.store` does."""
        c = self._config
        k = self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return ops.rope(k, rope), v

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q_norm(self.attn_q(x).reshape(c.num_heads, c.head_size)), rope)
        sinks: Sinks | None = getattr(self, "attn_sinks", None)
        attended = attention(
            q,
            *self.keys_and_values(x, rope),
            cache,
            scale=c.head_size**-0.5,
            sinks=None if sinks is None else sinks.weight,
        )
        return self.attn_output(attended)


class Layer(llama.Layer):
    attn: Attention

    def __init__(self, config: DecoderConfig, has_sinks: bool) -> None:
        ffn = SwiGLU(config.hidden_size, config.ffn_size)
        super().__init__(config, Attention(config, has_sinks), ffn)

    def store(self, fused: Tensor, rope: Tensor, cache: LayerCache) -> None:
        """Store the keys and values of tokens that the target has computed."""
        cache.update(*self.attn.keys_and_values(fused, rope))


class Encoder(Module):
    """The norm of the fused states."""

    def __init__(self, size: int, eps: float) -> None:
        self.output_norm = RMSNorm(size, eps)


class Draft(BlockDraft):
    """DFlash. With `d2t` the output layer covers fewer tokens than the target's; `d2t` lists them."""

    def __init__(self, file: GGUFFile, target: Target) -> None:
        super().__init__(file, target)
        _refuse_others(file)
        vocab_size = target.model.config.vocab_size
        self._own = config = DecoderConfig.read(file, vocab_size=vocab_size)
        self.hidden_layers = tuple(int(each) for each in file.get("dflash.target_layers", list[int]))
        self.block_size = file.get("dflash.block_size", int, _USUAL_BLOCK)
        self.mask_token = file.get("tokenizer.ggml.mask_token_id", int)
        self._check()
        size, eps = config.hidden_size, config.eps
        self.fc = Linear(len(self.hidden_layers) * size, size)
        self.enc = Encoder(size, eps)
        self.blk = [self._layer(index) for index in range(config.num_layers)]
        self.output_norm = RMSNorm(size, eps)
        self._embedding_factor = file.get("dflash.embedding_scale", float, 0.0) or 1.0
        self._rope = config.rope.rope(neox=True)
        if "token_embd.weight" in file.tensors:
            self.token_embd = Embedding(vocab_size, size)
        if "d2t" in file.tensors:
            self.unused = ("d2t",)
            self.token_ids = self.read_token_ids()
        if "output.weight" in file.tensors:
            self.output = Linear(size, vocab_size if self.token_ids is None else len(self.token_ids))

    def _layer(self, index: int) -> Layer:
        return Layer(self._own, f"blk.{index}.attn_sinks.weight" in self.file.tensors)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c, file = self._own, self.file
        window = file.get("dflash.attention.sliding_window", int, 0)
        is_near = sliding_layers(file, c.num_layers, 0) if window else (False,) * c.num_layers
        is_causal = file.get("dflash.attention.causal", bool, None)
        shape = c.kv_shape(self._rope)
        return [
            Causal(shape, self._span(window if near else None, near if is_causal is None else is_causal))
            for near in is_near
        ]

    def _span(self, window: int | None, is_causal: bool) -> AttentionSpan:
        """Return the tokens that a layer sees. All stay stored, so that the target can share any prefix."""
        ahead = 0 if is_causal else None
        if window is None:
            return AttentionSpan(ahead=ahead)
        ahead = window - 1 if ahead is None else ahead
        return AttentionSpan(window, memory=max(window, self.target.model.context), ahead=ahead)

    def store(self, inputs: Inputs, hidden: HiddenStates, caches: Sequence[Any]) -> None:
        size = self._own.hidden_size
        states = [(hidden[layer], index * size, 1) for index, layer in enumerate(self.hidden_layers)]
        fused = self.enc.output_norm(self.fc(ops.concat(states)))
        rope = inputs.rope_table(self._rope)
        for layer, cache in zip(self.blk, caches, strict=True):
            layer.store(fused, rope, cache)

    def propose_block(
        self,
        tokens: Tensor,
        positions: Tensor,
        outputs: Tensor,
        caches: Sequence[Any],
        most_tokens: int | None,
    ) -> Tensor:
        x = self.embedded(tokens) * self._embedding_factor
        rope = ops.rope_table(positions, self._rope)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache, outputs=outputs if layer is self.blk[-1] else None)
        return self.logits(self.output_norm(x), most_tokens)

    def _check(self) -> None:
        """Raise OptionError for a target of other sizes, and ModelError for invalid numbers."""
        path, size, vocab_size = self.file.path, self._own.hidden_size, self.target.model.config.vocab_size
        if not self.hidden_layers or min(self.hidden_layers) < 0:
            raise ModelError(
                f"{path}: dflash.target_layers is {self.hidden_layers}; it must list at least one layer"
            )
        if self.block_size < 2:
            raise ModelError(f"{path}: dflash.block_size is {self.block_size}; it must be at least 2")
        if size != self.target.hidden_size:
            raise self.misfit(
                f"it reads hidden states of {size} numbers, but those of the model have "
                f"{self.target.hidden_size}"
            )
        if not 0 <= self.mask_token < vocab_size:
            raise self.misfit(f"its mask is token {self.mask_token}, but the model has {vocab_size} tokens")


def _refuse_others(file: GGUFFile) -> None:
    for name, what in _OTHERS.items():
        if name in file.tensors:
            raise UnsupportedError(
                f"{file.path}: this draft contains {name} ({what}), which is not supported; use a DFlash "
                "draft without it, or load the model without a draft"
            )
