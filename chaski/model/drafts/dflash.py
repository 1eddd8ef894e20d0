"""DFlash (Chen et al. 2026, arXiv 2602.06036): a draft that proposes a block of tokens at once.

The hidden states of some of the target's layers are fused to one row. From these rows each layer of the
draft computes keys and values of all tokens that the target has computed. A block is the last token and the
masks after it. It attends to these keys and to all of its own, and predicts a token at each mask. Its own
keys are not kept.

DSpark adds a head that makes each token depend on the one before, and a confidence in each token; see
`chaski.model.markov_program`. DFlash 2 adds convolutions around attention and feed-forward blocks
(`chaski.model.drafts.dynamic_conv`) and chooses tokens that fit each other (`chaski.model.selector_program`).

In layers with a window the tokens of a block do not see later ones, as published drafts were trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Cache, CacheSize, Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Tensor
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm, SwiGLU, attention
from chaski.model.arch import llama, qwen3
from chaski.model.arch.gpt_oss import Sinks
from chaski.model.architecture import Architecture
from chaski.model.attached import BlockDraft, Target
from chaski.model.block_program import BlockProgram
from chaski.model.config import DecoderConfig, sliding_layers
from chaski.model.drafts.dynamic_conv import ConvConfig, DynamicConv, TokenBefore
from chaski.model.input import HiddenStates, Inputs
from chaski.model.markov_program import MarkovProgram
from chaski.model.proposing import ProposingCost, token_bytes
from chaski.model.selector_program import SelectorProgram

ARCHITECTURE = Architecture(
    "dflash",
    "DFlash, DFlash 2 and DSpark drafts",
    reads=("attention.sliding_window", "embedding_scale", "final_logit_softcapping", "logit_scale"),
)


__all__ = ["Draft"]

_USUAL_BLOCK = 16
_OTHERS = {
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


class ConvolvedLayer(Layer):
    """A layer of DFlash 2."""

    def __init__(self, config: DecoderConfig, has_sinks: bool, conv: ConvConfig) -> None:
        super().__init__(config, has_sinks)
        self.attn_conv = DynamicConv("attn", conv)
        self.ffn_conv = DynamicConv("ffn", conv)

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        """`context`: the rope, the cache, and which tokens are before others."""
        rope, cache, before = context
        x = x + self.attn_conv.around(self.attn_norm(x), lambda h: self.attn(h, rope, cache), before)
        x = x + self.ffn_conv.around(self.ffn_norm(x), self.ffn, before)
        return x if outputs is None else x.rows(outputs)


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
            self.output = Linear(size, self.num_outputs)
        self._logit_factor = file.get("dflash.logit_scale", float, 0.0) or 1.0
        self._softcap = file.get("dflash.final_logit_softcapping", float, 0.0)
        if self._has_markov_head:
            self._add_markov_head()
        if self._has_selector:
            self._add_selector()

    def _layer(self, index: int) -> Layer:
        has_sinks = f"blk.{index}.attn_sinks.weight" in self.file.tensors
        if self._has_selector:
            return ConvolvedLayer(self._own, has_sinks, ConvConfig.read(self.file, self.hidden_size))
        return Layer(self._own, has_sinks)

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
        self, tokens: Tensor, positions: Tensor, outputs: Tensor, caches: Sequence[Any]
    ) -> Tensor:
        x = self.embedded(tokens) * self._embedding_factor
        rope = ops.rope_table(positions, self._rope)
        more = (TokenBefore.declared(tokens),) if self._has_selector else ()
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache, *more, outputs=outputs if layer is self.blk[-1] else None)
        return self.output_norm(x)

    def block_inputs(self, sizes: Sequence[int]) -> dict[str, Any]:
        return TokenBefore.values(sizes) if self._has_selector else {}

    def logits(self, x: Tensor, most_tokens: int | None) -> Tensor:
        found = super().logits(x, most_tokens)
        if not (self._has_markov_head or self._has_selector):
            return found  # factors and bounds change no order
        found = found if self._logit_factor == 1 else found * self._logit_factor
        return ops.softcap(found, cap=self._softcap) if self._softcap else found

    def depending(
        self, before: Tensor, logits: Tensor, states: Tensor, most_tokens: int | None
    ) -> tuple[Tensor, Tensor | None]:
        """Record the Markov head: logits of a token in the light of the token before, and the confidence.

        The confidence is a number before the sigmoid (n, 1), and None for drafts without it.
        """
        row = self.markov_w1(before)
        w2 = self.markov_w2
        changed = w2(row) if most_tokens is None else ops.first_outputs(row, w2.weight, most_tokens)
        head: Linear | None = getattr(self, "conf_proj", None)
        confidence = None if head is None else head(ops.concat([(states, 0, 1), (row, self.hidden_size, 1)]))
        return logits + changed, confidence

    def gates(self, states: Tensor) -> Tensor:
        """Return the rows of states (n, size) that the selector multiplies (n, rank)."""
        return self.selector_hidden(states)

    def neighbours(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the selector's rows of tokens before a place and of tokens at it, each (n, rank)."""
        return self.selector_predecessor(tokens), self.selector_successor(tokens)

    def program(
        self, cache: Cache, backend: Backend, size: CacheSize, most_tokens: int | None
    ) -> BlockProgram:
        if self._has_selector:
            return SelectorProgram(self, cache, backend, size, most_tokens)
        if self._has_markov_head:
            return MarkovProgram(self, cache, backend, size, most_tokens)
        return super().program(cache, backend, size, most_tokens)

    def cost(self, output_share: float = 1.0) -> ProposingCost:
        cost = super().cost(output_share)
        head = sum(info.nbytes for name, info in self.file.tensors.items() if name == "markov_w2.weight")
        return replace(cost, token=cost.token + output_share * head / token_bytes(self.target.file))

    @property
    def hidden_size(self) -> int:
        """Return the size of the states of a block's tokens."""
        return self._own.hidden_size

    @property
    def num_outputs(self) -> int:
        """Return the number of logits."""
        return self.config.vocab_size if self.token_ids is None else len(self.token_ids)

    @property
    def _has_markov_head(self) -> bool:
        return "markov_w1.weight" in self.file.tensors

    def _add_markov_head(self) -> None:
        """Declare the tensors of DSpark."""
        file, tensors = self.file, self.file.tensors
        rank = tensors["markov_w1.weight"].shape[-1]
        self.markov_w1 = Embedding(self.config.vocab_size, rank)
        self.markov_w2 = Linear(rank, self.num_outputs)
        if "conf_proj.weight" in tensors:
            self.conf_proj = Linear(self.hidden_size + rank, 1)
        self.first_predicted = 0 if file.get("dflash.sample_from_anchor", bool, True) else 1

    @property
    def _has_selector(self) -> bool:
        return "selector_hidden.weight" in self.file.tensors

    def _add_selector(self) -> None:
        """Declare the tensors of DFlash 2 outside of layers. Raises ModelError for a wrong number."""
        rank, vocab_size = self.file.get("dflash.selector_rank", int), self.config.vocab_size
        self.num_candidates = self.file.get("dflash.selector_top_k", int)
        if not 1 <= self.num_candidates <= self.num_outputs:
            raise ModelError(
                f"{self.file.path}: dflash.selector_top_k is {self.num_candidates}; it must be 1 to "
                f"{self.num_outputs}, the number of logits"
            )
        self.selector_hidden = Linear(self.hidden_size, rank)
        self.selector_predecessor = Embedding(vocab_size, rank)
        self.selector_successor = Embedding(vocab_size, rank)

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
