"""The pooling of a sentence-transformers checkpoint."""

from __future__ import annotations

from chaski.convert.config import Config, read_json
from chaski.errors import UnsupportedError

__all__ = ["read_pooling"]

_POOLING = "1_Pooling/config.json"
_POOLINGS = {"mean": 1, "cls": 2, "lasttoken": 3}


def read_pooling(config: Config) -> int:
    """Return the pooling that sentence-transformers' settings name, of either generation; else the mean."""
    path = config.path.parent / _POOLING
    found = Config(path, read_json(path))
    modes = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    modes |= {"pooling_mode_lasttoken": "lasttoken"}
    on = [key for key, value in found.values.items() if key.startswith("pooling_mode_") and value is True]
    mode = found.get("pooling_mode", str, modes.get(on[0], on[0]) if on else "mean")
    if mode not in _POOLINGS or len(on) > 1:
        raise UnsupportedError(f"{path}: pooling by {', '.join(on) or mode!r} cannot be converted")
    return _POOLINGS[mode]
