"""The proposals of blocks for multi-token prediction against layers of transformers; needs torch.

The oracle computes the block of all tokens from the beginning, in float64: norms of embeddings and of the
model's normalized states, a product of both, a layer of transformers, a norm, and the model's output layer.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.model.proposing import ProposingProgram
from chaski.runner.speculation.ngram import NgramSpeculator
from chaski.runner.speculation.speculator import PayingLength
from tests.convert.test_blocks_after import block_of
from tests.families import checkpoint, expected

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")
torch_files: Any = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.oracle

PROMPT = np.random.default_rng(2).integers(5, 290, 20).tolist()


def loaded(folder: Path) -> Any:
    """Return the model of a checkpoint in float64."""
    from transformers import AutoModelForCausalLM

    torch.set_default_dtype(torch.float64)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, experts_implementation="eager", attn_implementation="eager"
        )
        return model.double().eval()  # some classes keep parts in float32
    finally:
        torch.set_default_dtype(torch.float32)


def loaded_with(folder: Path, tensors: dict[str, Any]) -> Any:
    """Return the layers and all around them of a checkpoint, in which these tensors replace others."""
    weights = torch_files.load_file(folder / "model.safetensors")
    other = shutil.copytree(folder, folder / "block")
    torch_files.save_file(weights | tensors, other / "model.safetensors")
    return loaded(other).get_decoder()


def normed(x: Any, weight: Any, eps: float) -> Any:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def causal_mask(count: int, window: int | None = None) -> Any:
    places = torch.arange(count)
    distance = places[:, None] - places
    is_seen = (distance >= 0) & (distance < (window or count))
    mask = torch.zeros(count, count, dtype=torch.float64)
    return mask.masked_fill(~is_seen, torch.finfo(torch.float64).min)[None, None]


class Oracle:
    """A checkpoint of one block, as transformers computes it.

    transformers loads the layers of the block in place of layers of another model.
    """

    def __init__(self, folder: Path, family: str, layers: int) -> None:
        self._model = loaded(folder)
        self._base = self._model.get_decoder()
        weights = torch_files.load_file(folder / "model.safetensors")
        prefix, sources = f"model.layers.{layers}.", {layers - 1: f"model.layers.{layers}."}
        names = ["enorm", "hnorm", "eh_proj", "shared_head.norm"]
        if family == "exaone4":
            prefix, sources = "mtp.", {layers - 1: "mtp.layers.0."}
            names = ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"]
        if family == "nemotron_h_moe":
            prefix, sources = "mtp.layers.", {2: "mtp.layers.0.", 3: "mtp.layers.1."}
            names = ["0.enorm", "0.hnorm", "0.eh_proj", "1.final_layernorm"]
        if family == "hy_v4":
            prefix, sources = "model.mtp_layers.0.", {1: "model.mtp_layers.0."}
        if family in ("hy_v3", "hy_v4"):
            names[-1] = "final_layernorm"
        self._outside = [weights[f"{prefix}{name}.weight"].double() for name in names]
        stem = next(name for name in weights if ".layers.0." in name).partition("0.")[0]
        replaced = {
            name.replace(source, f"{stem}{index}."): each
            for index, source in sources.items()
            for name, each in weights.items()
            if name.startswith(source)
        }
        block = loaded_with(folder, {name: each for name, each in replaced.items() if name in weights})
        self._parts = [block.layers[index] for index in sources]

    def proposed(self, tokens: list[int], count: int) -> list[int]:
        """Return the tokens that the block proposes after these."""
        enorm, hnorm, join, norm = self._outside
        eps = getattr(self._model.config, "rms_norm_eps", None) or self._model.config.layer_norm_epsilon
        found = list(tokens)
        with torch.no_grad():
            states = self._base(torch.tensor([tokens[:-1]])).last_hidden_state
            for _ in range(count):
                embedded = self._base.get_input_embeddings()(torch.tensor([found[1:]]))
                x = torch.cat([normed(embedded, enorm, eps), normed(states, hnorm, eps)], -1) @ join.T
                for layer in self._parts:
                    x = self._run(layer, x)
                x = normed(x, norm, eps)
                found.append(int(self._model.lm_head(x[:, -1]).argmax()))
                states = torch.cat([states, x[:, -1:]], 1)
        return found[len(tokens) :]

    def _run(self, layer: Any, x: Any) -> Any:
        count = x.shape[1]
        places = torch.arange(1, count + 1)[None]
        more: dict[str, Any] = {"attention_mask": causal_mask(count), "position_ids": places}
        if (rotary := getattr(self._base, "rotary_emb", None)) is not None:
            more["position_embeddings"] = rotary(x, position_ids=places)
        if not hasattr(layer, "attn_hc"):
            y = layer(x, **more)
            return y[0] if isinstance(y, tuple) else y
        x = x + layer.self_attn(layer.input_layernorm(x), **more)[0]  # a block has no residual streams
        return x + layer.mlp(layer.post_attention_layernorm(x))


class DeepSeekV4:
    """A checkpoint of DeepSeek V4 with a block, which reads and returns all residual streams.

    transformers loads the block as the last layer, the last norm and the sum of streams of another model.
    """

    def __init__(self, folder: Path) -> None:
        self._model = loaded(folder)
        self._base = self._model.get_decoder()
        weights = torch_files.load_file(folder / "model.safetensors")
        block = {name.removeprefix("mtp.0."): each for name, each in weights.items() if "mtp." in name}
        self._outside = {
            name: block[f"{name}.weight"].double() for name in ("e_proj", "h_proj", "enorm", "hnorm")
        }
        last = f"layers.{self._model.config.num_hidden_layers - 1}."
        own = {
            name if name.startswith(("norm.", "hc_head")) else last + name: each
            for name, each in block.items()
        }
        own = {name: each for name, each in own.items() if name in weights}
        self._block = loaded_with(folder, own)

    def proposed(self, tokens: list[int], count: int) -> list[int]:
        """Return the tokens that the block proposes after these."""
        own, eps, found = self._outside, self._model.config.rms_norm_eps, list(tokens)
        streams = list[Any]()
        hook = self._base.hc_head.register_forward_hook(lambda module, read, out: streams.append(read[0]))
        with torch.no_grad():
            self._base(torch.tensor([tokens[:-1]]))
            hook.remove()
            (states,) = streams
            for _ in range(count):
                ids = torch.tensor([found[1:]])
                known = normed(self._base.get_input_embeddings()(ids), own["enorm"], eps) @ own["e_proj"].T
                x = self._run(known[:, :, None] + normed(states, own["hnorm"], eps) @ own["h_proj"].T, ids)
                states = torch.cat([states, x[:, -1:]], 1)
                last = self._block.norm(self._block.hc_head(x[:, -1:]))
                found.append(int(self._model.lm_head(last)[0, -1].argmax()))
        return found[len(tokens) :]

    def _run(self, x: Any, ids: Any) -> Any:
        places = torch.arange(1, x.shape[1] + 1)
        mask = causal_mask(len(places), self._model.config.sliding_window)
        rotary = {
            kind: self._base.rotary_emb(x, position_ids=places[None], layer_type=kind)
            for kind in ("main", "compress")
        }
        return self._block.layers[-1](
            x, input_ids=ids, position_embeddings=rotary, position_ids=places[None], attention_mask=mask
        )


class Qwen4Exp:
    """A checkpoint of Qwen 3.8 Flash-Next with a block, which reads and returns all residual streams.

    transformers loads the block as the last layer and the last mixer of another model. The first token reads
    its own state, for want of one before it.
    """

    def __init__(self, folder: Path) -> None:
        self._model = loaded(folder)
        self._base = self._model.get_decoder()
        weights = torch_files.load_file(folder / "model.safetensors")
        block = {name.removeprefix("mtp."): each for name, each in weights.items() if "mtp." in name}
        self._outside = {
            name: block[f"{name}.weight"].double()
            for name in ("fc_embedding", "fc_hidden", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        }
        last = f"model.layers.{self._model.config.num_hidden_layers - 1}."
        own = {name.replace("layers.0.", last): each for name, each in block.items() if "layers." in name}
        own |= {f"model.{name}": each for name, each in block.items() if name.startswith("hyper_connection")}
        self._block = loaded_with(folder, own)

    def proposed(self, tokens: list[int], count: int) -> list[int]:
        """Return the tokens that the block proposes after these."""
        own, eps, found = self._outside, self._model.config.rms_norm_eps, list(tokens)
        streams = list[Any]()
        mixer = self._base.hyper_connection_mixer
        hook = mixer.register_forward_hook(lambda module, read, out: streams.append(read[0]))
        with torch.no_grad():
            self._base(torch.tensor([tokens[:-1]]))
            hook.remove()
            states = torch.cat([streams[0][:, :1], streams[0]], 1)
            for _ in range(count):
                embedded = self._base.get_input_embeddings()(torch.tensor([found]))
                known = normed(embedded, 1 + own["pre_fc_norm_embedding"], eps) @ own["fc_embedding"].T
                hidden = normed(states, 1 + own["pre_fc_norm_hidden"], eps)
                parts = hidden.unflatten(-1, (-1, known.shape[-1])) @ own["fc_hidden"].T
                x = self._run((known[:, :, None] + parts).flatten(-2))
                states = torch.cat([states, x[:, -1:]], 1)
                last = self._block.hyper_connection_mixer(x[:, -1:])
                found.append(int(self._model.lm_head(last)[0, -1].argmax()))
        return found[len(tokens) :]

    def _run(self, x: Any) -> Any:
        places = torch.arange(x.shape[1])
        rotary = self._base.rotary_emb(x, position_ids=places.expand(3, 1, -1))
        return self._block.layers[-1](x, position_embeddings=rotary, attention_mask=causal_mask(len(places)))


_ORACLES: dict[str, type[DeepSeekV4 | Qwen4Exp]] = {"deepseek4": DeepSeekV4, "qwen4exp": Qwen4Exp}


@pytest.mark.parametrize(
    "variant",
    [
        "bailingmoe3/usual",
        "deepseek2/v3",
        "deepseek4/blocks",
        "exaone4/small",
        "glm4/usual",
        "glm_dsa/own",
        "hy_v3/blocks",
        "hy_v4/shared",
        "nemotron_h_moe/usual",
        "qwen4exp/blocks",
    ],
)
def test_a_block_proposes_as_transformers_computes(
    tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, family = expected(variant), variant.partition("/")[0]
    config = known["config"] | {"num_nextn_predict_layers": 1}
    layers, tensors = config["num_hidden_layers"], known["tensors"]
    is_whole = variant.endswith("/blocks")
    tensors = tensors if is_whole else tensors | block_of(family, layers, tensors, config["hidden_size"])
    folder = checkpoint(tmp_path / "more", config, tensors, known["seed"], known.get("integers"))
    convert(folder, tmp_path / "more.gguf", "F32")
    oracle = _ORACLES[family](folder) if family in _ORACLES else Oracle(folder, family, layers)
    monkeypatch.setattr(NgramSpeculator, "propose", lambda self: [])
    monkeypatch.setattr(PayingLength, "current", lambda *arguments: 2)
    asked = list[Any]()
    propose = ProposingProgram.propose

    def recording(self: ProposingProgram, requests: Any) -> None:
        propose(self, requests)
        asked.extend((each.position, list(each.proposed)) for each in requests)

    monkeypatch.setattr(ProposingProgram, "propose", recording)
    with chaski.load(tmp_path / "more.gguf", context=128, kv_type="f32", threads=1) as model:
        answer = model.generate(PROMPT, temperature=0, num_predict=12, ignore_eos=True)
    text = [*PROMPT, *answer.token_ids]
    assert len(asked) > 5
    wrong = [
        (tokens, wanted)
        for position, tokens in asked
        if (wanted := oracle.proposed(text[: position + 1], len(tokens))) != tokens
    ]
    assert len(wrong) <= 1, wrong  # activations are rounded to eight bits, so nearly equal logits may differ
