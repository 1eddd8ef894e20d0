"""EAGLE-3 (Li et al. 2025, arXiv 2503.01840): one layer that reads hidden states of three target layers.

For each token the layer reads the token's embedding and the states of the previous token, fused to one row.
It predicts the next token, and then continues from its own output instead of the fused row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache, LayerKind
from chaski.kvcache.previous import StoredRows
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm, RopeFactors, SwiGLU, attention
from chaski.model.arch.llama import Attention
from chaski.model.architecture import Architecture
from chaski.model.attached import StepDraft, Target
from chaski.model.config import DecoderConfig
from chaski.model.input import HiddenStates, Inputs
from chaski.model.proposing import ProposalInputs

ARCHITECTURE = Architecture("eagle3", "EAGLE-3 drafts", reads=("norm_before_fc", "norm_before_residual"))


__all__ = ["Draft"]


class WideAttention(Attention):
    """Attention over rows of twice the usual size: the token's embedding followed by its fused states."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        size = 2 * config.hidden_size
        self.attn_q = Linear(size, config.num_heads * config.head_size)
        self.attn_k = Linear(size, config.num_kv_heads * config.head_size)
        self.attn_v = Linear(size, config.num_kv_heads * config.value_size)

    def keys_and_values(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values that the cache stores."""
        c = self._config
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        return k, self.attn_v(x).reshape(c.num_kv_heads, c.value_size)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        return self.attn_output(attention(q, *self.keys_and_values(x, rope), cache, scale=c.head_size**-0.5))


class Layer(Module):
    """The only layer. `normalized`: the residual is the norm of the fused states instead of these."""

    def __init__(self, config: DecoderConfig, normalized: bool) -> None:
        size, eps = config.hidden_size, config.eps
        self._size = size
        self._normalized = normalized
        self.attn_norm = RMSNorm(size, eps)
        self.attn_norm_2 = RMSNorm(size, eps)
        self.attn = WideAttention(config)
        self.ffn_norm = RMSNorm(size, eps)
        self.ffn = SwiGLU(size, config.ffn_size)

    def store(self, embedded: Tensor, fused: Tensor, rope: Tensor, cache: LayerCache) -> None:
        """Store the keys and values of tokens, each computed with the fused states of the previous token."""
        x = self._joined(embedded, self.attn_norm_2(fused))
        cache.update(*self.attn.keys_and_values(x, rope))

    def __call__(self, embedded: Tensor, fused: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        normalized = self.attn_norm_2(fused)
        h = self.attn(self._joined(embedded, normalized), rope, cache)
        x = (normalized if self._normalized else fused) + h
        return x + self.ffn(self.ffn_norm(x))

    def _joined(self, embedded: Tensor, normalized: Tensor) -> Tensor:
        return ops.concat([(self.attn_norm(embedded), 0, 1), (normalized, self._size, 1)])


class Encoder(Module):
    """The norm of the states before they are fused (EAGLE-3.1)."""

    def __init__(self, size: int, eps: float) -> None:
        self.output_norm = RMSNorm(size, eps)


class Draft(StepDraft):
    """EAGLE-3. Embeddings and output layer are the target's if the file does not contain them.

    With `d2t` the output layer covers fewer tokens than the target's; `d2t` lists them.
    """

    blk: list[Layer]

    def __init__(self, file: GGUFFile, target: Target) -> None:
        super().__init__(file, target)
        self._own = config = DecoderConfig.read(file, vocab_size=target.model.config.vocab_size)
        self.hidden_layers = tuple(int(each) for each in file.get("eagle3.target_layers", list[int]))
        self.hidden_size = config.hidden_size
        self._check()
        size = len(self.hidden_layers) * target.hidden_size
        if file.get("eagle3.norm_before_fc", bool, False):
            self.enc = Encoder(size, config.eps)
        self.fc = Linear(size, config.hidden_size)
        self.blk = [Layer(config, file.get("eagle3.norm_before_residual", bool, False))]
        self.output_norm = RMSNorm(config.hidden_size, config.eps)
        self.rope_freqs = RopeFactors(config.rope.dims)
        self._rows = StoredRows(config.hidden_size)
        if "token_embd.weight" in file.tensors:
            self.token_embd = Embedding(target.model.config.vocab_size, config.hidden_size)
        if "output.weight" in file.tensors:
            self.output = Linear(config.hidden_size, self._num_proposed())
        if "d2t" in file.tensors:
            self.unused = ("d2t",)
            self.token_ids = self.read_token_ids()

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self._own
        shape = c.kv_shape(self._rope())
        return [Causal(shape, AttentionSpan(hidden=1)), self._rows.kind]

    @property
    def proposing_layers(self) -> Sequence[int]:
        return super().proposing_layers[:1]

    def store(self, inputs: Inputs, hidden: HiddenStates, caches: Sequence[Any]) -> Tensor:
        size = self.target.hidden_size
        states = [(hidden[layer], index * size, 1) for index, layer in enumerate(self.hidden_layers)]
        joined = ops.concat(states)
        encoder: Encoder | None = getattr(self, "enc", None)
        fused = self.fc(joined if encoder is None else encoder.output_norm(joined))
        before = self._rows.previous(fused, caches[1])
        rope = inputs.rope_table(self._rope())
        embedded = self.embedded(inputs.tokens)
        embedded = embedded if self._has_own_embeddings else inputs.with_images(embedded)
        self.blk[0].store(embedded, before, rope, caches[0])
        return fused.rows(inputs.outputs)

    def propose(self, inputs: ProposalInputs, caches: Sequence[Any]) -> tuple[Tensor, Tensor]:
        rope = ops.rope_table(inputs.positions, self._rope())
        x = self.blk[0](self.embedded(inputs.tokens), inputs.hidden, rope, caches[0])
        return x, self.logits(self.output_norm(x), inputs.most_tokens)

    def _rope(self) -> Rope:
        return self._own.rope.rope(factors=self.rope_freqs.weight.array)

    @property
    def _has_own_embeddings(self) -> bool:
        return "token_embd.weight" in self.file.tensors

    def _num_proposed(self) -> int:
        """Return the number of tokens that the draft can propose."""
        tensors = self.file.tensors
        return tensors["d2t"].shape[-1] if "d2t" in tensors else self.target.model.config.vocab_size

    def _check(self) -> None:
        """Raise OptionError for a target of other sizes, and ModelError for invalid numbers."""
        file, target = self.file, self.target
        if self._own.num_layers != 1 or not self.hidden_layers or min(self.hidden_layers) < 0:
            raise ModelError(
                f"{file.path}: the EAGLE-3 draft has {self._own.num_layers} layers and reads target layers "
                f"{self.hidden_layers}; it must have one layer and read at least one"
            )
        size = file.get("eagle3.target_hidden_size", int)
        if size != target.hidden_size:
            raise self.misfit(
                f"it reads hidden states of {size} numbers, but those of the model have {target.hidden_size}"
            )
        own = {"token_embd.weight", "output.weight"} & file.tensors.keys()
        missing = {"token_embd.weight", "output.weight"} - own
        if missing and self._own.hidden_size != target.hidden_size:
            raise self.misfit(
                f"it has no {min(missing)}, and that of the model has rows of {target.hidden_size} numbers "
                f"instead of {self._own.hidden_size}"
            )
