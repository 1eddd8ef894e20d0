"""ModernBERT (Warner et al. 2024): GeGLU, norms before both blocks, windows in two of three layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, KVShape, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import Embedding, FusedGLU, LayerNorm, Linear, Module, output_rows
from chaski.model import classifier
from chaski.model.arch.bert import Attention
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, sliding_layers
from chaski.model.dense import DenseLayers
from chaski.model.input import Inputs
from chaski.model.pooling import Pooling
from chaski.model.rope import read_base

ARCHITECTURE = Architecture(
    "modern-bert",
    "ModernBERT, GTE ModernBERT, Nomic ModernBERT Embed, Granite Embedding R2",
    notes="Rerankers that read the first token work; rerankers that read the mean are rejected.",
    reads=("attention.sliding_window", "classifier.pooling_type", "hidden_activation", "rope.freq_base_swa"),
)


_PERIOD = 3
_ACTIVATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    **dict.fromkeys(("gelu", "geglu"), ops.erf_geglu),
    **dict.fromkeys(("silu", "swiglu", "swish"), ops.swiglu),
}


class Layer(Module):
    """`is_first`: the embeddings are already normalized. `is_local`: tokens attend within a window."""

    def __init__(self, config: DecoderConfig, activation: str, is_first: bool, is_local: bool) -> None:
        self.is_local = is_local
        self._is_first = is_first
        if not is_first:
            self.attn_norm = LayerNorm(config.hidden_size, config.eps, bias=False)
        self.attn = Attention(config)
        self.ffn_norm = LayerNorm(config.hidden_size, config.eps, bias=False)
        self.ffn = FusedGLU(config.hidden_size, config.ffn_size, _ACTIVATIONS[activation])

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache, outputs: Tensor | None) -> Tensor:
        h = self.attn(x if self._is_first else self.attn_norm(x), rope, cache)
        h, x = output_rows(outputs, h, x)
        x = x + h
        return x + self.ffn(self.ffn_norm(x))


class Classifier(classifier.Classifier):
    """A classifier whose layer before the scores has GELU and a norm after it."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.norm = LayerNorm(config.hidden_size, config.eps, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.output(self.norm(ops.gelu(Linear.__call__(self, x))))


class Model(Module):
    def __init__(self, file: GGUFFile) -> None:
        arch = file.architecture
        has_eps = f"{arch}.attention.layer_norm_epsilon" in file.metadata
        eps = "layer_norm_epsilon" if has_eps else "layer_norm_rms_epsilon"
        self.config = config = DecoderConfig.read(file, eps=eps, is_causal=False)
        self.context = config.context_length
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        self.token_embd_norm = LayerNorm(config.hidden_size, config.eps, bias=False)
        window = file.get(f"{arch}.attention.sliding_window", int, 0)
        near = sliding_layers(file, config.num_layers, _PERIOD, sees_all=0)
        are_local = [is_near and window > 0 for is_near in near]
        activation = _activation(file)
        self.blk = [Layer(config, activation, i == 0, is_local) for i, is_local in enumerate(are_local)]
        self.output_norm = LayerNorm(config.hidden_size, config.eps, bias=False)
        self.dense = DenseLayers(file, config.hidden_size)
        if config.pooling is Pooling.RANK:
            _require_first(file)
            self.cls = Classifier(config)
        # Half of the window lies before a token and half after it.
        self._reach = window // 2
        local = config.rope.unscaled(read_base(file, f"{arch}.rope.freq_base_swa"))
        self._local, self._global = local.rope(neox=True), config.rope.rope(neox=True)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        window = AttentionSpan(self._reach + 1, ahead=self._reach)
        return [
            Causal(
                KVShape(c.num_heads, c.head_size, c.head_size, self._rope(layer)),
                window if layer.is_local else AttentionSpan(),
            )
            for layer in self.blk
        ]

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        ropes = {rope: ops.rope_table(inputs.positions, rope) for rope in (self._local, self._global)}
        x = self.token_embd_norm(self.token_embd(inputs.tokens))
        for layer, cache in zip(self.blk, caches, strict=True):
            outputs = inputs.outputs if layer is self.blk[-1] else None
            x = layer(x, ropes[self._rope(layer)], cache, outputs)
        x = self.output_norm(x)
        return self.cls(x) if self.config.pooling is Pooling.RANK else self.dense(x)

    def _rope(self, layer: Layer) -> Rope:
        return self._local if layer.is_local else self._global


def _require_first(file: GGUFFile) -> None:
    """Refuse a classifier that reads the mean of a text's states, the default if the file lacks the key."""
    key = f"{file.architecture}.classifier.pooling_type"
    if file.get(key, int, int(Pooling.MEAN)) != Pooling.FIRST:
        raise UnsupportedError(
            f"{file.path}: {key} is not {int(Pooling.FIRST)} (first): a ModernBERT that ranks by the mean of "
            "a text's states is not supported"
        )


def _activation(file: GGUFFile) -> str:
    name = file.get(f"{file.architecture}.hidden_activation", str, "gelu")
    if name not in _ACTIVATIONS:
        known = ", ".join(sorted(_ACTIVATIONS))
        raise UnsupportedError(
            f"{file.path}: {file.architecture}.hidden_activation = {name!r:.40} is not supported; "
            f"supported: {known}"
        )
    return name
