"""The workloads of the suite: the rows of docs/performance.md, each a workload on a file with its goals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import make_models
from benchmarks.engines import DEFAULT_KV, Workload
from benchmarks.roofline import Costs

__all__ = ["BATCHES", "HISTORIES", "ROWS", "TYPES", "Goal", "Row", "costs"]


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a value: a multiple of the best peer's value, and a share of the machine's limit."""

    what: str
    ratio: float
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One workload on one file, with the compared values; without goals it is a point of a plot."""

    name: str
    title: str
    type: str
    workload: Workload
    goals: tuple[Goal, ...] = ()
    shown: tuple[str, ...] = ("prefill", "decode")
    shape: str = "llama-3.2-1b"
    kv_type: str = DEFAULT_KV
    """The type of keys and values in both engines; by default, each engine's own."""
    rounds: int = 3
    keep: bool = True
    """True if processes are kept between rounds; a cold start needs fresh ones."""
    overlap: float | None = None
    """The share of the answer that is in the prompt, in rows that compare with and without speculation."""
    chance: float | None = None
    """The same for the model's own heads: the probability that a proposed token is correct."""

    @property
    def has_ik_llama_cpp(self) -> bool:
        """Return whether ik_llama.cpp can be measured: one sequence with keys and values of 16 bits."""
        return self.keep and self.workload.batch == 1 and self.kv_type in (DEFAULT_KV, "f16")

    @property
    def is_own_rival(self) -> bool:
        """Return whether it is measured with and without speculation, not against a peer."""
        return self.overlap is not None or self.chance is not None


# Points of the plots.
BATCHES = (1, 2, 4, 8, 16, 32)
HISTORIES = (0, 1024, 2048, 4096, 8192)
# Goals of a prompt of 512 tokens and of decoding after it; None for no goal.
_GOALS_BY_TYPE: dict[str, tuple[Goal, Goal | None]] = {
    "Q4_K_M": (Goal("prefill", 1.3, share=0.8), Goal("decode", 1.0, share=0.9)),
    "Q8_0": (Goal("prefill", 2.0, share=0.8), Goal("decode", 1.0, share=0.9)),
    "Q4_0": (Goal("prefill", 1.8, share=0.8), Goal("decode", 1.0, share=0.9)),
    "Q6_K": (Goal("prefill", 1.3, share=0.8), Goal("decode", 1.0, share=0.9)),
    "Q5_K": (Goal("prefill", 1.3), None),
    "MXFP4": (Goal("prefill", 1.3), None),
    "F16": (Goal("prefill", 1.0), Goal("decode", 1.0, share=0.9)),
    "BF16": (Goal("prefill", 1.15), None),
    **dict.fromkeys(
        ("IQ1_S", "IQ2_XXS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (Goal("prefill", 1.5), Goal("decode", 1.2))
    ),
}
TYPES = tuple(_GOALS_BY_TYPE)
_BATCH_GOALS = {8: 4.0, 32: 3.0}


def _by_type(kind: str) -> Row:
    goals = tuple(goal for goal in _GOALS_BY_TYPE[kind] if goal is not None)
    return Row(f"type-{kind.lower()}", f"{kind}, prompt of 512", kind, Workload(), goals)


def _of_batch(batch: int) -> Row:
    goals = (Goal("decode", _BATCH_GOALS[batch]),) if batch in _BATCH_GOALS else ()
    work = Workload(prompt=32, generate=32, batch=batch, repeat=1)
    title = f"Q4_K_M, {batch} sequence{'s' * (batch > 1)} decoding"
    return Row(f"batch-{batch}", title, "Q4_K_M", work, goals, ("decode",), rounds=3 if goals else 1)


def _of_history(history: int) -> Row:
    work = Workload(prompt=max(history, 1), generate=32, repeat=1)
    longest = history == HISTORIES[-1]
    goals = (Goal("prefill", 2.5), Goal("decode", 2.2)) if longest else ()
    title = f"Q4_K_M, {history:,} tokens of history"
    shown = ("prefill", "decode") if history else ("decode",)
    return Row(f"history-{history}", title, "Q4_K_M", work, goals, shown, rounds=2 if longest else 1)


def _of_kv_type(kv_type: str) -> Row:
    work = Workload(prompt=8192, generate=32, repeat=1)
    title = f"Q4_K_M, 8,192 tokens of history, {kv_type}"
    goals = (Goal("decode", 2.2),)
    return Row(f"history-8192-{kv_type}", title, "Q4_K_M", work, goals, kv_type=kv_type, rounds=2)


def _one_thread(kind: str) -> Row:
    work = Workload(prompt=32, generate=48, threads=1)
    goals = (Goal("decode", 1.2),)
    return Row(f"thread-{kind.lower()}", f"{kind}, one thread", kind, work, goals, ("decode",))


def _small() -> Row:
    goals = (Goal("decode", 1.15),)
    return Row("smollm", "SmolLM-135M, Q8_0, prompt of 512", "Q8_0", Workload(), goals, shape="smollm-135m")


def _hybrid(shape: str, kind: str) -> Iterator[Row]:
    """Return the rows of Qwen 3.5, most of whose layers are gated delta nets."""
    name, layers = f"{shape}-{kind.lower()}", make_models.SHAPES[shape].num_layers
    title = f"{shape}, {layers} layers, {kind}, prompt of"
    goals = (Goal("prefill", 1.6), Goal("decode", 1.15))
    yield Row(name, f"{title} 512", kind, Workload(), goals, shape=shape)
    long = Workload(prompt=8192, generate=32, repeat=1)
    yield Row(f"{name}-8192", f"{title} 8,192", kind, long, (Goal("prefill", 2.0),), shape=shape, rounds=2)


def _gemma4(shape: str) -> Row:
    layers = make_models.SHAPES[shape].num_layers
    title = f"{shape}, {layers} layers, Q4_K_M, prompt of 512"
    goals = (Goal("prefill", 1.5), Goal("decode", 1.1))
    return Row(f"{shape}-q4_k_m", title, "Q4_K_M", Workload(), goals, shape=shape)


def _latent() -> Row:
    """Return the row of latent attention: decoding behind a long history."""
    shape, work = "deepseek-v2-lite", Workload(prompt=8192, generate=32, repeat=1)
    layers = make_models.SHAPES[shape].num_layers
    title = f"{shape}, {layers} layers, Q4_K_M, 8,192 tokens of history"
    return Row(f"{shape}-8192", title, "Q4_K_M", work, (Goal("decode", 2.0),), shape=shape)


def _state_space(shape: str) -> Row:
    title = f"{shape}, Q4_K_M, prompt of 512"
    return Row(f"{shape}-q4_k_m", title, "Q4_K_M", Workload(), (Goal("prefill", 1.5),), shape=shape)


def _with_experts(shape: str) -> Row:
    layers = make_models.SHAPES[shape].num_layers
    title = f"{shape}, {layers} layers, Q4_K_M, prompt of 512"
    goals = (Goal("prefill", 1.6), Goal("decode", 1.15))
    return Row(f"{shape}-q4_k_m", title, "Q4_K_M", Workload(), goals, shape=shape)


def _speculation(overlap: float, ratio: float) -> Row:
    work = Workload(prompt=400, generate=160, repeat=2)
    title = f"Q4_K_M, an edit with {overlap:.0%} from the prompt, against no speculation"
    name = f"speculation-{100 * overlap:.0f}"
    return Row(name, title, "Q4_K_M", work, (Goal("decode", ratio),), ("decode",), overlap=overlap)


def _heads(chance: float, ratio: float) -> Row:
    shape, work = "qwen3.5-4b-nextn", Workload(prompt=200, generate=96, repeat=2)
    title = f"{shape}, Q4_K_M, heads that are right {chance:.0%} of the time, against no speculation"
    goals = (Goal("decode", ratio),)
    name = f"heads-{100 * chance:.0f}"
    return Row(name, title, "Q4_K_M", work, goals, ("decode",), shape=shape, chance=chance)


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        *map(_by_type, TYPES),
        _small(),
        *map(_one_thread, ("Q4_K_M", "Q8_0")),
        *map(_of_batch, BATCHES),
        *map(_of_history, HISTORIES),
        *map(_of_kv_type, ("f16", "q8_0")),
        *(
            row
            for shape in ("qwen3.5-4b", "qwen3.5-35b-a3b")
            for kind in ("Q4_K_M", "IQ4_XS")
            for row in _hybrid(shape, kind)
        ),
        *map(_gemma4, ("gemma-4-e4b", "gemma-4-26b-a4b")),
        _latent(),
        *map(_state_space, ("mamba2-130m", "mamba2-780m")),
        *map(_with_experts, ("deepseek-v3", "glm-4.7")),
        _speculation(0.6, 1.5),
        _speculation(0.0, 0.98),
        _heads(0.7, 1.5),
        _heads(0.0, 0.98),
        Row(
            "start",
            "Q4_K_M, a fresh process",
            "Q4_K_M",
            Workload(prompt=512, generate=8, repeat=1),
            (Goal("first_logits", 0.8), Goal("peak_memory", 1.0)),
            ("first_logits", "peak_memory"),
            rounds=5,
            keep=False,
        ),
    )
}

# Bytes of an element, and the number type of attention; our default also has a scale for each head.
_HISTORY_BYTES = {DEFAULT_KV: 2.0625, "f16": 2.0, "q8_0": 34 / 32}
_ATTENTION_TYPES = {DEFAULT_KV: "int16"}


def costs(row: Row) -> Costs:
    """Return the least cost of the row's model."""
    shape = make_models.SHAPES[row.shape]
    layers, head = make_models.num_products(shape)
    product_type = {"F32": "fp32", "F16": "fp32", "BF16": "bf16"}.get(row.type, "int8")
    size = make_models.weight_bytes(shape, row.type)
    history = shape.history_elements * _HISTORY_BYTES[row.kv_type]
    attention_type = _ATTENTION_TYPES.get(row.kv_type, "fp32")
    return Costs(size, layers, head, history, product_type, shape.attention_products, attention_type)
