"""The guide: prewritten answers in a model's file. In conversations the model is held to them.

The loader asks `guide_of` for the guide of a file, and gives `Guide.steered` to the model's prompts. Nothing
else knows that guides exist.
"""

from chaski.guide.guide import Guide, guide_of

__all__ = ["Guide", "guide_of"]
