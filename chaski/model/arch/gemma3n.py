"""Gemma 3n (Google 2025): AltUp (Baykal et al. 2023), LAuReL (Menghani et al. 2024), sparse gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.nn import Joined, Linear, Module, RMSNorm, SharedHistory, SwiGLU, output_rows
from chaski.model.arch.gemma4.attention import Attention, SharedAttention
from chaski.model.architecture import GELU, Architecture
from chaski.model.config import DecoderConfig, refuse, sliding_layers
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.per_layer import PerLayerBlock, PerLayerInputs
from chaski.model.projectors import read_vision
from chaski.model.rope import read_base

ARCHITECTURE = Architecture(
    "gemma3n",
    "Gemma 3n",
    notes="Pictures with a projector of llama.cpp, or in a file of chaski's converter; no sound. "
    "transformers is the only oracle: llama.cpp supports only the published sizes.",
    reads=(
        "activation_sparsity_scale",
        "attention.shared_kv_layers",
        "attention.sliding_window",
        "embedding_length_per_layer_input",
        "final_logit_softcapping",
        "rope.freq_base_swa",
    ),
    fixed={"hidden_activation": GELU},
)

_ENCODERS = {"gemma3nv": "mobilenet"}
_STATES = 4
_PERIOD = 5
# Files do not store these values; llama.cpp hard-codes them too.
_STORING_LAYERS, _SPARSE_LAYERS, _MULTIPLIER, _SOFTCAP = 20, 10, 1.6448533535003662, 30.0
_MATRICES = tuple(f"altup_unembd_proj_{index}" for index in range(1, _STATES))
_TINY = 1e-30  # prevents division by zero for rows of zeros


class Factors(Module):
    """A factor for each element of a state."""

    def __init__(self, size: int) -> None:
        self.weight = Weight((size,))

    def __call__(self, x: Tensor) -> Tensor:
        return ops.multiply_vector(x, self.weight)


class Projections(Module):
    """The products of one state with the matrices of all others, which files store as one tensor."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.weight = Weight(((_STATES - 1) * size, size), stored=(_STATES - 1, size, size), split=0)

    def __call__(self, x: Tensor, magnitude: Tensor) -> list[Tensor]:
        products = ops.linear(x, self.weight)
        return [
            _brought_to(ops.slice(products, index * self._size, self._size), magnitude)
            for index in range(_STATES - 1)
        ]


class Unprojections(Module):
    """The product of each state but the first with its own matrix; files store the matrices as one tensor."""

    inline = True
    joined = Joined("altup_unembd_proj", _MATRICES)

    def __init__(self, size: int) -> None:
        for name in _MATRICES:
            setattr(self, name, Linear(size, size))

    def __call__(self, states: Sequence[Tensor], magnitude: Tensor) -> list[Tensor]:
        return [
            _brought_to(getattr(self, name)(state), magnitude)
            for name, state in zip(_MATRICES, states, strict=True)
        ]


def _brought_to(x: Tensor, magnitude: Tensor) -> Tensor:
    """Scale each row of x to the root mean square `magnitude`."""
    return ops.scale_rows(ops.rms_norm(x, None, _TINY), magnitude)


class AltUp(Module):
    """Several states per token. A layer computes the first one, and predicts and corrects the others."""

    inline = True

    def __init__(self, config: DecoderConfig) -> None:
        size = config.hidden_size
        self._scale = 1 / size
        self.altup_router_norm = RMSNorm(size, config.eps)
        self.altup_router = Linear(size, _STATES)
        self.altup_predict_coef = Linear(_STATES, _STATES**2)
        self.altup_correct_coef = Linear(_STATES, _STATES)
        self.altup_correct_scale = Factors(size)

    def predict(self, states: Sequence[Tensor]) -> list[Tensor]:
        factors = self.altup_predict_coef(self._modalities(states[0]))
        return [
            sum(
                (_times(states[other], factors, index * _STATES + other) for other in range(_STATES)),
                start=state,
            )
            for index, state in enumerate(states)
        ]

    def correct(self, predicted: Sequence[Tensor], activated: Tensor) -> list[Tensor]:
        factors = self.altup_correct_coef(self._modalities(activated))
        innovation = activated + predicted[0] * -1.0
        return [
            state + innovation + _times(innovation, factors, index) for index, state in enumerate(predicted)
        ]

    def _modalities(self, x: Tensor) -> Tensor:
        return ops.softcap(self.altup_router(self.altup_router_norm(x) * self._scale), cap=1.0)


def _times(x: Tensor, factors: Tensor, index: int) -> Tensor:
    return ops.scale_rows(x, ops.slice(factors, index, 1))


class Laurel(Module):
    """A low-rank branch parallel to attention."""

    inline = True

    def __init__(self, config: DecoderConfig, rank: int) -> None:
        self.laurel_l = Linear(config.hidden_size, rank)
        self.laurel_r = Linear(rank, config.hidden_size)
        self.laurel_post_norm = RMSNorm(config.hidden_size, config.eps)

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.laurel_post_norm(self.laurel_r(self.laurel_l(x)))


class Layer(Module):
    """A layer. `multiplier`: standard deviations above the mean that a gate must reach; None opens all."""

    def __init__(
        self,
        file: GGUFFile,
        config: DecoderConfig,
        stores: bool,
        window: int | None,
        multiplier: float | None,
    ) -> None:
        size, eps = config.hidden_size, config.eps
        self.window = window
        self.altup = AltUp(config)
        self.attn_norm = RMSNorm(size, eps)
        self.laurel = Laurel(config, file.tensors["blk.0.laurel_l.weight"].shape[0])
        self.attn = Attention(config) if stores else SharedAttention(config)
        self.post_attention_norm = RMSNorm(size, eps)
        self.ffn_norm = RMSNorm(size, eps)
        activation = ops.geglu if multiplier is None else partial(_sparse_geglu, multiplier=multiplier)
        self.ffn = SwiGLU(size, config.ffn_size, activation)
        self.post_ffw_norm = RMSNorm(size, eps)
        self.per_layer = PerLayerBlock(config, file.get("gemma3n.embedding_length_per_layer_input", int))

    def __call__(
        self, states: Sequence[Tensor], rope: Tensor, history: SharedHistory, own: Tensor
    ) -> list[Tensor]:
        predicted = self.altup.predict(states)
        normed = self.attn_norm(predicted[0])
        attended = self.post_attention_norm(self.attn(normed, rope, history))
        x = (predicted[0] + attended + self.laurel(normed)) * math.sqrt(0.5)
        x = x + self.post_ffw_norm(self.ffn(self.ffn_norm(x)))
        first, *others = self.altup.correct(predicted, x)
        more = self.per_layer(self.altup.altup_correct_scale(first), own)
        return [first, *(state + more for state in others)]


def _sparse_geglu(gate: Tensor, up: Tensor, multiplier: float) -> Tensor:
    return ops.geglu(ops.gaussian_top_k(gate, multiplier), up)


class Model(Decoder):
    vision: MultimodalProcessor | None = None

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        refuse(file, "gemma3n.altup.num_inputs", _STATES, "other numbers of AltUp states")
        refuse(file, "gemma3n.altup.active_idx", 0, "other active states of AltUp")
        layers, window = config.num_layers, file.get("gemma3n.attention.sliding_window", int)
        shared = file.get("gemma3n.attention.shared_kv_layers", int, max(0, layers - _STORING_LAYERS))
        self._num_stored = layers - shared
        self.per_layer = PerLayerInputs(config, file.get("gemma3n.embedding_length_per_layer_input", int))
        self.altup_proj = Projections(config.hidden_size)
        self.altup_unembd_proj = Unprojections(config.hidden_size)
        near = sliding_layers(file, layers, _PERIOD)
        self.blk = [
            Layer(file, config, index < self._num_stored, window if is_near else None, multiplier)
            for index, (is_near, multiplier) in enumerate(zip(near, _multipliers(file, layers), strict=True))
        ]
        self._softcap = file.get("gemma3n.final_logit_softcapping", float, _SOFTCAP)
        local = config.rope.unscaled(read_base(file, "gemma3n.rope.freq_base_swa"))
        self._local, self._global = local.rope(neox=True), config.rope.rope(neox=True)
        self.vision = read_vision(file, projector, config.hidden_size, _ENCODERS)

    def layer_kinds(self) -> Sequence[LayerKind]:
        """List the kinds of the layers that store; the others read the last storing layer of their kind."""
        c = self.config
        return [
            Causal(
                c.kv_shape(self._rope(layer)),
                AttentionSpan(layer.window),
            )
            for layer in self.blk[: self._num_stored]
        ]

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        x = inputs.with_images(self.token_embd(inputs.tokens) * self.config.hidden_size**0.5)
        own = self.per_layer(inputs.tokens, x)
        magnitude = ops.rms(x)
        states = [x, *self.altup_proj(x, magnitude)]
        ropes = {rope: ops.rope_table(inputs.positions, rope) for rope in (self._local, self._global)}
        histories: dict[int | None, SharedHistory] = {}
        for index, layer in enumerate(self.blk):
            if index < self._num_stored:
                histories[layer.window] = SharedHistory(caches[index])
            states = layer(states, ropes[self._rope(layer)], histories[layer.window], own[index])
        first, *others = output_rows(inputs.outputs, *states)
        magnitude = ops.rms(first)
        for unprojected in self.altup_unembd_proj(others, magnitude):
            first = first + unprojected
        return self.head(first * (1 / _STATES), self._softcap)

    def _rope(self, layer: Layer) -> Rope:
        return self._global if layer.window is None else self._local


def _multipliers(file: GGUFFile, num_layers: int) -> list[float | None]:
    """Return the multiplier of each layer's sparse gates, None for layers in which all gates count."""
    key = "gemma3n.activation_sparsity_scale"
    if key not in file.metadata:
        return [_MULTIPLIER if index < _SPARSE_LAYERS else None for index in range(num_layers)]
    return [None if math.isinf(scale) else float(scale) for scale in file.get(key, list[float])]
