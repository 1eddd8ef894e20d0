"""Qwen 3 Next and Qwen 3.5, dense and with experts (Qwen Team 2025, 2026): few of the layers attend.

The other layers are gated delta nets; see `chaski.model.delta_net`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import (
    GatedSharedExpert,
    Linear,
    Module,
    MoE,
    MoEWithSharedExpert,
    RMSNorm,
    SwiGLU,
    attention,
    output_rows,
)
from chaski.model.arch import qwen3
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, is_recurrent
from chaski.model.decoder import Decoder
from chaski.model.delta_net import DeltaConfig, GatedDeltaNet
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.nextn import NextnTensors, before, nextn_kinds
from chaski.model.output_rows import HIDDEN
from chaski.model.proposing import ProposalInputs

ARCHITECTURE = Architecture(
    "qwen3next",
    "Qwen3-Next, Qwen3-Coder-Next",
    tools=("qwen3", "qwen3-coder"),
    thinking=("qwen3-thinking",),
    reads=("full_attention_interval", "nextn_predict_layers"),
    fixed={"attention.causal": (True,)},
)


class GatedAttention(qwen3.Attention):
    """Attention with gates. Each head's query is followed by a gate, whose sigmoid multiplies the result."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q = Linear(config.hidden_size, 2 * config.num_heads * config.head_size)

    def keys_and_values(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values that the cache stores, as `Head.store` does."""
        c = self._config
        k = self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return ops.rope(k, rope), v

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q_gate = self.attn_q(x).reshape(c.num_heads, 2 * c.head_size)
        q = ops.rope(self.attn_q_norm(ops.slice(q_gate, 0, c.head_size)), rope)
        k, v = self.keys_and_values(x, rope)
        attended = attention(q, k, v, cache, scale=c.head_size**-0.5)
        gate = ops.slice(q_gate, c.head_size, c.head_size).reshape(c.num_heads * c.head_size)
        return self.attn_output(ops.multiply(attended, ops.sigmoid(gate)))


class Layer(Module):
    """A layer. `attn` takes the norm and `context`: a cache, preceded by the rope if `attn` is attention."""

    def __init__(
        self, config: DecoderConfig, attn: GatedAttention | GatedDeltaNet, ffn: SwiGLU | MoEWithSharedExpert
    ) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = attn
        self.post_attention_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn = ffn

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + h
        return x + self.ffn(self.post_attention_norm(x))


class Head(Layer):
    """The block after the last layer. It predicts the token after the next one; see `NextnTensors`."""

    attn: GatedAttention

    def __init__(
        self, config: DecoderConfig, ffn: SwiGLU | MoEWithSharedExpert, tensors: NextnTensors
    ) -> None:
        super().__init__(config, GatedAttention(config), ffn)
        self.nextn = tensors

    def store(self, embedded: Tensor, hidden: Tensor, rope: Tensor, cache: LayerCache) -> None:
        """Store the keys and values of tokens, each computed with the hidden state of the previous token."""
        x = self.attn_norm(self.nextn(embedded, hidden))
        cache.update(*self.attn.keys_and_values(x, rope))


class Model(Decoder):
    """Qwen 3 Next. The first of the multi-token prediction blocks after the last layer proposes tokens."""

    token_ids = None

    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        if config.value_size != config.head_size:
            raise ModelError(
                f"{file.path}: values have {config.value_size} elements, but heads have {config.head_size}"
            )
        self._delta = DeltaConfig.read(file)
        self._rope = config.rope.rope(neox=True)
        extra = file.get(f"{file.architecture}.nextn_predict_layers", int, 0)
        layers = config.num_layers - extra
        if layers < 1:
            raise ModelError(
                f"{file.path}: {extra} of {config.num_layers} blocks are for multi-token prediction, so no "
                "layer is left"
            )
        self._is_linear = tuple(is_recurrent(file, config.num_layers, interval=4)[:layers])
        self.blk = [self.layer(file, index) for index in range(layers)]
        self.unused = tuple(f"blk.{index}." for index in range(layers, config.num_layers))
        tensors = NextnTensors.read(file, layers, config)
        if tensors is not None:
            self.blk.append(Head(config, self.ffn(file), tensors))
            self.unused = self.unused[1:]

    def layer(self, file: GGUFFile, index: int) -> Layer:
        return Layer(self.config, self._attn(file, index), self.ffn(file))

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def proposing_layers(self) -> Sequence[int]:
        """See `Proposing`."""
        return [len(self._is_linear)] if self._head is not None else []

    def leave_out_proposing(self) -> None:
        """See `Proposing`."""
        layers = len(self._is_linear)
        self.unused = tuple(f"blk.{index}." for index in range(layers, self.config.num_layers))
        del self.blk[layers:]

    @property
    def _head(self) -> Head | None:
        last = self.blk[-1]
        return last if isinstance(last, Head) else None

    def _attn(self, file: GGUFFile, index: int) -> GatedAttention | GatedDeltaNet:
        if not self._is_linear[index]:
            return GatedAttention(self.config)
        block = f"blk.{index}."
        names = {name.removeprefix(block) for name in file.tensors if name.startswith(block)}
        return GatedDeltaNet(self.config.hidden_size, self.config.eps, self._delta, names)

    def ffn(self, file: GGUFFile) -> SwiGLU | MoEWithSharedExpert:
        """Return the feed-forward block of a layer."""
        arch, size = file.architecture, self.config.hidden_size
        if not file.get(f"{arch}.expert_count", int, 0):
            return SwiGLU(size, self.config.ffn_size)
        hidden = file.get(f"{arch}.expert_feed_forward_length", int)
        shared = file.get(f"{arch}.expert_shared_feed_forward_length", int)
        router = read_router(file, Gating.SOFTMAX, normalized=True)
        return MoEWithSharedExpert(MoE(size, hidden, router), GatedSharedExpert(size, shared))

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        shape = c.kv_shape(self._rope)
        linear = self._delta.kind()
        kinds: list[LayerKind] = [linear if is_linear else Causal(shape) for is_linear in self._is_linear]
        return kinds if self._head is None else [*kinds, *nextn_kinds(shape, c.hidden_size)]

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        rope = inputs.rope_table(self._rope)
        embedded = x = inputs.with_images(self.token_embd(inputs.tokens))
        head, layers = self._head, len(self._is_linear)
        blocks = self.blk[:layers]
        for layer, is_linear, cache in zip(blocks, self._is_linear, caches, strict=False):
            context = (cache,) if is_linear else (rope, cache)
            outputs = inputs.enter(layer, blocks, x)
            x = layer(x, *context, outputs=outputs if head is None else None)
        if head is None:
            return self.head(inputs.leave(x))
        x = self.output_norm(x)
        embedded = head.nextn.embedded(inputs.tokens, embedded)
        head.store(embedded, before(x, caches[layers + 1]), rope, caches[layers])
        (x,) = output_rows(inputs.outputs, x)
        x.graph.output(HIDDEN, x)
        return self.output_of(x)

    def propose(self, inputs: ProposalInputs, caches: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """See `Proposing`."""
        head = self._head
        assert head is not None, "it has a head"
        rope = ops.rope_table(inputs.positions, self._rope)
        embedded = head.nextn.embedded(inputs.tokens, self.token_embd(inputs.tokens))
        x = head(head.nextn(embedded, inputs.hidden), rope, caches[0], outputs=None)
        x = head.nextn.normalized(x, self.output_norm)
        output, most = head.nextn.output, inputs.most_tokens
        if output is None:
            return x, self.plain_logits(x, most)
        return x, output(x) if most is None else ops.first_outputs(x, output.weight, most)
