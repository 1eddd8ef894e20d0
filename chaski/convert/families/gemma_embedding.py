"""EmbeddingGemma (Google 2025): Gemma 3, and the modules that sentence-transformers puts behind it."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config, read_json
from chaski.convert.families import gemma3
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata
from chaski.convert.pooling import read_pooling
from chaski.convert.tensors import Mapped, Planned

_MODULES = {"dense_2": "2_Dense", "dense_3": "3_Dense"}
_IDENTITY = "torch.nn.modules.linear.Identity"


def metadata(config: Config) -> Metadata:
    entries = gemma3.metadata(config, is_bidirectional=True) | {"pooling_type": read_pooling(config)}
    for name, module in _dense(config).items():
        entries[f"{name}_feat_in"] = module.get("in_features", int)
        entries[f"{name}_feat_out"] = module.get("out_features", int)
    return entries


def _dense(config: Config) -> dict[str, Config]:
    """The settings of the dense modules that are there, by GGUF's names."""
    found: dict[str, Config] = {}
    for name, folder in _MODULES.items():
        path = config.path.parent / folder / "config.json"
        if path.exists():
            found[name] = module = Config(path, read_json(path))
            module.expect("activation_function", _IDENTITY)
            module.expect("bias", False)
    return found


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from gemma3.tensors(config, names)
    for name, module in _dense(config).items():
        shape = module.get("out_features", int), module.get("in_features", int)
        yield Mapped(f"{name}.weight", shape, (f"{name}.linear.weight",))


FAMILY = Family("gemma-embedding", metadata, tensors, defaults=gemma3.DEFAULTS, modules=_MODULES)
