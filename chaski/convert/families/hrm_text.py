"""HRM-Text (Sapient 2026): two stacks of layers, whose matrices the release stores in one."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial

from chaski.convert.config import Config
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Mapped, Planned, equal_part

_FUSED = {
    "attn.gqkv_proj": ("attn_gate", "attn_q", "attn_k", "attn_v"),
    "mlp.gate_up_proj": ("ffn_gate", "ffn_up"),
}
_SEPARATE = {
    "attn_gate": "self_attn.gate_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
}
_INITIALIZER_RANGE = 0.02


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    for key in ("attention_bias", "mlp_bias"):
        config.expect(key, False)
    size, slow, fast = (_per_stack(config), *(config.get(key, int) for key in ("H_cycles", "L_cycles")))
    usual = 1 / config.get("initializer_range", float, _INITIALIZER_RANGE)
    own: Metadata = {
        "block_count": size * slow * (fast + 1),
        "rope.dimension_count": head_size(config),
        "embedding_scale": config.get("embedding_scale", float, usual),
        "hrm.layers_per_stack": size,
        "hrm.h_cycles": slow,
        "hrm.l_cycles": fast,
        "hrm.prefix_lm": config.get("prefix_lm", bool, False),
    }
    # Queries, keys and values have the same heads, so files lack the number of heads of the last two.
    common = common_metadata(config)
    del common["attention.head_count_kv"]
    return common | own


def _per_stack(config: Config) -> int:
    """Return the layers of a stack: configurations of transformers count those of all passes, too."""
    return config.get("num_layers_per_stack", int, config.get("num_hidden_layers", int))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden = config.get("hidden_size", int)
    table = config.get("vocab_size", int), hidden
    yield Mapped("token_embd.weight", table, ("embed_tokens.weight",))
    if "lm_head.weight" in names or not config.get("tie_word_embeddings", bool, False):
        yield Mapped("output.weight", table, ("lm_head.weight",))
    yield Mapped("hrm.z_l_init", (hidden,), ("z_L_init",))
    size = _per_stack(config)
    for block in range(2 * size):
        stack = "L_module" if block < size else "H_module"
        yield from _layer(config, names, f"blk.{block}", f"{stack}.layers.{block % size}")


def _layer(config: Config, names: Set[str], block: str, source: str) -> Iterator[Planned]:
    hidden, ffn = config.get("hidden_size", int), config.get("intermediate_size", int)
    heads = config.get("num_attention_heads", int) * head_size(config)
    for fused, parts in _FUSED.items():
        whole = f"{source}.{fused}.weight"
        rows = heads if fused.startswith("attn") else ffn
        for part, name in enumerate(parts):
            target, shape = f"{block}.{name}.weight", (rows, hidden)
            if whole in names:
                stored = len(parts) * rows, hidden
                yield Mapped(target, shape, (whole,), stored, partial(equal_part, part, len(parts)))
            else:
                yield Mapped(target, shape, (f"{source}.{_SEPARATE[name]}.weight",))
    output = f"{source}.attn.o_proj.weight"
    own = output if output in names else f"{source}.self_attn.o_proj.weight"
    yield Mapped(f"{block}.attn_output.weight", (hidden, heads), (own,))
    yield Mapped(f"{block}.ffn_down.weight", (hidden, ffn), (f"{source}.mlp.down_proj.weight",))


FAMILY = Family("hrm_text", metadata, tensors)
CHECKPOINTS = ("HrmTextForCausalLM",)
