"""From logits to the next token: options, penalties, truncation, seeded draws, log-probabilities.

Knows token ids and numbers only: no text, no model, no end-of-text rule.
"""

from chaski.sample.options import SamplingOptions
from chaski.sample.sampler import Sampled, Sampler, TokenLogprob, scored

__all__ = ["Sampled", "Sampler", "SamplingOptions", "TokenLogprob", "scored"]
