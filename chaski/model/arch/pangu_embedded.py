"""openPangu Embedded (Huawei 2025), which computes what Qwen 2 computes."""

from chaski.model.arch.qwen2 import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture("pangu-embedded", "openPangu Embedded", tools=("pangu",), thinking=("pangu",))
