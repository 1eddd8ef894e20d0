"""Sampling turns logits into the next token: penalties, truncation, seeded draws, log-probabilities.

It knows token ids and numbers only: no text, no model, no end-of-text rule.
"""

from chaski.sample.options import SamplingOptions
from chaski.sample.sampler import Sampled, Sampler, TokenLogprob, scored

__all__ = ["Sampled", "Sampler", "SamplingOptions", "TokenLogprob", "scored"]
