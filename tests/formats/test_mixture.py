"""The mixtures of types against the choices of llama.cpp's quantizer."""

from __future__ import annotations

import re

import numpy as np
import pytest

from chaski.errors import OptionError
from chaski.formats.mixture import MIXTURES, Sizes, Wishes, find_mixture
from chaski.formats.quant import QuantType

LAYERS = 16
SHAPES = {
    "token_embd.weight": (1000, 2048),
    "output_norm.weight": (2048,),
    **{f"blk.{i}.attn_v.weight": (512, 2048) for i in range(LAYERS)},
    **{f"blk.{i}.attn_k.weight": (512, 2048) for i in range(LAYERS)},
    **{f"blk.{i}.attn_output.weight": (2048, 2048) for i in range(LAYERS)},
    **{f"blk.{i}.attn_q.bias": (2048,) for i in range(LAYERS)},
    **{f"blk.{i}.ffn_down.weight": (2048, 8192) for i in range(LAYERS)},
    **{f"blk.{i}.ffn_gate_inp.weight": (8, 2048) for i in range(LAYERS)},
}
SENSITIVE = [0, 1, 4, 7, 10, 13, 14, 15]  # the first and last eighth, and every third between


PLAIN = Sizes(LAYERS)


def types(name: str, sizes: Sizes = PLAIN, **shapes: tuple[int, ...]) -> dict[str, QuantType]:
    return find_mixture(name).choose(SHAPES | shapes, sizes)


@pytest.mark.parametrize(("name", "base"), [("Q4_K_M", QuantType.Q4_K), ("Q5_K_M", QuantType.Q5_K)])
def test_medium(name: str, base: QuantType) -> None:
    found = types(name)
    for part in ("attn_v", "ffn_down"):
        better = [i for i in range(LAYERS) if found[f"blk.{i}.{part}.weight"] is QuantType.Q6_K]
        assert better == SENSITIVE
        assert found[f"blk.2.{part}.weight"] is base
    assert found["blk.0.attn_k.weight"] is base
    assert found["token_embd.weight"] is QuantType.Q6_K


def test_small() -> None:
    found = types("Q4_K_S")
    better = {name for name, type in found.items() if type is QuantType.Q5_K}
    assert better == {
        *(f"blk.{i}.attn_v.weight" for i in range(4)),
        *(f"blk.{i}.ffn_down.weight" for i in range(2)),
    }


@pytest.mark.parametrize("name", MIXTURES)
def test_what_is_small_stays_whole(name: str) -> None:
    found = types(name, **{"blk.2.ssm_in.weight": (512, 2048)})
    assert not found.keys() & {"output_norm.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight"}
    assert found["blk.2.ssm_in.weight"] is find_mixture(name).base


def test_an_output_matrix_relieves_the_embedding() -> None:
    found = types("Q4_K_M", **{"output.weight": (1000, 2048)})
    assert found["output.weight"] is QuantType.Q6_K
    assert found["token_embd.weight"] is QuantType.Q4_K
    assert types("Q8_0")["token_embd.weight"] is QuantType.Q8_0


def test_eight_experts() -> None:
    found = types("Q4_K_M", Sizes(LAYERS, num_experts=8))
    assert found["blk.2.attn_v.weight"] is found["blk.2.attn_k.weight"] is QuantType.Q8_0
    assert found["blk.2.attn_output.weight"] is QuantType.Q5_K


def test_70b() -> None:
    assert types("Q4_K_M", Sizes(LAYERS, is_70b=True))["blk.2.attn_v.weight"] is QuantType.Q5_K


@pytest.mark.parametrize(
    ("name", "columns", "type"),
    [
        ("Q4_K_M", 2080, QuantType.Q5_0),
        ("Q5_K_M", 2080, QuantType.Q5_1),
        ("Q6_K", 2080, QuantType.Q8_0),
        ("Q4_K_M", 2050, QuantType.F16),
        ("Q8_0", 2050, QuantType.F16),
    ],
)
def test_rows_that_are_not_whole_blocks(name: str, columns: int, type: QuantType) -> None:
    assert types(name, **{"blk.0.attn_k.weight": (8, columns)})["blk.0.attn_k.weight"] is type


def test_names() -> None:
    assert find_mixture("q4_k") is MIXTURES["Q4_K_M"]
    with pytest.raises(OptionError, match="type 'Q3' is not known; choose one of F32, F16"):
        find_mixture("Q3")


@pytest.mark.parametrize("stranger", ["blk.x.attn_q.weight", "t.ffn_up.weight", "dec.ffn_gate.weight"])
@pytest.mark.parametrize("name", ["Q4_K_M", "Q4_K_S", "Q8_0"])
def test_tensors_of_no_layer_are_like_most(name: str, stranger: str) -> None:
    """Tensors without a layer are treated like most tensors, since files may contain any names."""
    found = types(name, **{stranger: (512, 2048)})
    assert found.pop(stranger) is find_mixture(name).base
    assert found == types(name)


def test_encoders_of_images_stay_and_do_not_count() -> None:
    strangers = {f"v.blk.{i}.attn_v.weight": (512, 2048) for i in range(40)} | {"mm.0.weight": (512, 2048)}
    assert types("Q4_K_M", **strangers) == types("Q4_K_M")


def test_three_bits() -> None:
    found = types("Q3_K_M")
    assert found["blk.1.attn_v.weight"] is found["blk.0.ffn_down.weight"] is QuantType.Q5_K
    assert found["blk.2.attn_v.weight"] is found["blk.5.ffn_down.weight"] is QuantType.Q4_K
    assert found["blk.2.attn_output.weight"] is QuantType.Q4_K
    assert types("Q3_K_L")["blk.9.ffn_down.weight"] is QuantType.Q5_K


@pytest.mark.parametrize(("groups", "type"), [(1, QuantType.Q3_K), (4, QuantType.Q4_K)])
def test_two_bits(groups: int, type: QuantType) -> None:
    found = types("Q2_K", Sizes(LAYERS, num_groups=groups))
    assert found["blk.2.attn_v.weight"] is type
    assert found["blk.2.ffn_down.weight"] is found["blk.2.attn_output.weight"] is QuantType.Q3_K
    assert MIXTURES["Q2_K_S"].needs_importance("blk.2.attn_k.weight", QuantType.Q2_K)
    assert not MIXTURES["Q2_K"].needs_importance("blk.2.attn_k.weight", QuantType.Q2_K)


def test_importance_changes_a_choice() -> None:
    informed = find_mixture("IQ4_XS").choose(SHAPES, PLAIN, Wishes(has_importance=True))
    assert types("IQ4_XS")["blk.0.ffn_down.weight"] is QuantType.Q5_K
    assert informed["blk.0.ffn_down.weight"] is QuantType.IQ4_XS


def test_wishes_come_first() -> None:
    wishes = Wishes(
        output=QuantType.Q8_0,
        embedding=QuantType.Q5_0,
        tensors=((re.compile("attn_[kv]"), QuantType.Q6_K), (re.compile("attn_v"), QuantType.F16)),
    )
    shapes = SHAPES | {"output.weight": (1000, 2048)}
    found = find_mixture("Q4_K_M").choose(shapes, PLAIN, wishes)
    assert found["output.weight"] is QuantType.Q8_0
    assert found["token_embd.weight"] is QuantType.Q5_0
    assert {found[f"blk.{i}.attn_v.weight"] for i in range(LAYERS)} == {QuantType.Q6_K}
    assert found["blk.0.ffn_down.weight"] is QuantType.Q6_K  # by the mixture
    pure = find_mixture("Q4_K_M").choose(shapes, PLAIN, Wishes(is_pure=True))
    assert set(pure.values()) == {QuantType.Q4_K}


def test_sizes_of_metadata() -> None:
    metadata = {
        "general.architecture": "qwen2",
        "qwen2.block_count": 80,
        "qwen2.attention.head_count": np.array([64] * 80),
        "qwen2.attention.head_count_kv": 8,
        "qwen2.expert_count": 4,
    }
    assert Sizes.of(metadata) == Sizes(80, 4, 8, is_70b=True, architecture="qwen2")
