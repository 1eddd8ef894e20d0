"""The modules of sentence-transformers that follow a checkpoint's states: a pooling, and dense layers."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.config import Config, read_json
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped
from chaski.errors import UnsupportedError

__all__ = ["MODULES", "check_modules", "dense_metadata", "dense_tensors", "pooling_metadata", "read_pooling"]

MODULES = {"dense_2": "2_Dense", "dense_3": "3_Dense"}
"""The folders of dense layers, by GGUF's names for them."""

_IDENTITY = "torch.nn.modules.linear.Identity"
_POOLING = "1_Pooling/config.json"
_POOLINGS = {"mean": 1, "cls": 2, "lasttoken": 3}


def read_pooling(config: Config) -> int:
    """Return the pooling from sentence-transformers' old or new settings; mean pooling by default."""
    path = config.path.parent / _POOLING
    found = Config(path, read_json(path))
    modes = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    modes |= {"pooling_mode_lasttoken": "lasttoken"}
    on = [key for key, value in found.values.items() if key.startswith("pooling_mode_") and value is True]
    mode = found.get("pooling_mode", str, modes.get(on[0], on[0]) if on else "mean")
    if mode not in _POOLINGS or len(on) > 1:
        raise UnsupportedError(f"{path}: pooling by {', '.join(on) or mode!r} cannot be converted")
    return _POOLINGS[mode]


def pooling_metadata(config: Config) -> Metadata:
    """Return the pooling of a decoder if sentence-transformers' settings define one, else no keys.

    Attention in such a decoder may be bidirectional.
    """
    if not (config.path.parent / _POOLING).exists():
        config.expect("is_causal", True)
        return {}
    causal: Metadata = {} if config.get("is_causal", bool, True) else {"attention.causal": False}
    return {"pooling_type": read_pooling(config), **causal}


def check_modules(config: Config, embeds: bool) -> None:
    """Raise UnsupportedError for sentence-transformers' dense layers that the conversion would drop."""
    known = set(MODULES.values()) if embeds else set()
    left = sorted(path.name for path in config.path.parent.glob("*_Dense*") if path.name not in known)
    if left:
        raise UnsupportedError(
            f"{config.path.parent}: the dense layer {left[0]} cannot be converted for this architecture; "
            "without it the model would return different vectors"
        )


def dense_metadata(config: Config) -> Metadata:
    """Return the sizes of the dense layers."""
    entries: Metadata = {}
    for name, module in _dense(config).items():
        entries[f"{name}_feat_in"] = module.get("in_features", int)
        entries[f"{name}_feat_out"] = module.get("out_features", int)
    return entries


def dense_tensors(config: Config) -> Iterator[Mapped]:
    """Return the tensors of the dense layers."""
    for name, module in _dense(config).items():
        shape = module.get("out_features", int), module.get("in_features", int)
        yield Mapped(f"{name}.weight", shape, (f"{name}.linear.weight",))


def _dense(config: Config) -> dict[str, Config]:
    """Return the settings of the dense layers, by GGUF's names.

    Raises UnsupportedError for dense layers with a bias or an activation.
    """
    found: dict[str, Config] = {}
    for name, folder in MODULES.items():
        path = config.path.parent / folder / "config.json"
        if path.exists():
            found[name] = module = Config(path, read_json(path))
            module.expect("activation_function", _IDENTITY)
            module.expect("bias", False)
    return found
