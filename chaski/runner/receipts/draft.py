"""`ReceiptDraft`: the receipt of an answer before its first token is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from chaski.chat.options import AnswerOptions
from chaski.chat.prompts import Prepared
from chaski.errors import OptionError
from chaski.receipts.chain import chain_of
from chaski.receipts.receipt import AdapterPart, Chain, End, ModelPart, PromptPart, Receipt, token_digest
from chaski.receipts.wish import ReceiptWish
from chaski.runner.adapters.applied import AppliedAdapters
from chaski.sample import SamplingOptions

__all__ = ["IRRELEVANT", "ReceiptDraft", "receipt_draft", "shared_rule"]

IRRELEVANT = frozenset(
    {
        *(
            "adapter",
            "cache_salt",
            "draft_num_predict",
            "logprobs",
            "no_store",
            "num_keep",
            "prompt_logprobs",
        ),
        *("receipt", "seed", "shift", "top_logprobs", "truncate"),
        # They are for answers that have no receipt.
        *("denoising_block", "denoising_steps", "early_stopping", "length_penalty", "num_beams"),
    }
)
"""Options that a receipt leaves out: they change no token of its answer, or it contains them elsewhere."""

_NO_CHAIN = Chain(last="0" * 64)


class ReceiptDraft(Struct, frozen=True):
    """A receipt without the answer, and what the request wants of it."""

    wish: ReceiptWish
    receipt: Receipt

    def finished(self, output: Sequence[int], end: End, tops: Sequence[bytes]) -> Receipt:
        """Return the receipt of an answer. `tops`: the largest logits of each step, if they are covered."""
        whole = replace(self.receipt, output=tuple(output), end=end)
        num_top = self.wish.top_logits
        whole = replace(whole, chain=chain_of(whole, num_top, tops if num_top else [b""] * len(output)))
        return whole if self.wish.prompt == "tokens" else whole.without_prompt()


def receipt_draft(
    prepared: Prepared,
    sampling: SamplingOptions,
    rule: str,
    model: ModelPart,
    adapters: AppliedAdapters | None,
) -> ReceiptDraft:
    """Return the draft for a prepared answer. Raises OptionError for what cannot be computed again.

    sampling: the options with the seed. rule: that of the backend
    """
    from chaski import __version__

    wish, tokens = prepared.limits.receipt, prepared.prompt.tokens
    assert wish is not None, "the request wants a receipt"
    if prepared.prompt.images:
        raise OptionError("option receipt is for prompts without images: leave out one of both")
    if prepared.read_tokens:
        raise OptionError("option receipt is not for models with an encoder of prompts; leave it out")
    if not rule.startswith("native "):
        raise OptionError(
            f"option receipt needs a backend whose bits are the same everywhere; {rule} has no such rule"
        )
    used = () if adapters is None else zip(adapters.digests, adapters.uses, strict=True)
    receipt = Receipt(
        engine=f"chaski {__version__}",
        rule=shared_rule(rule),
        model=model,
        adapters=tuple(AdapterPart(digest=digest, scale=use.scale) for digest, use in used),
        prompt=PromptPart(count=len(tokens), digest=token_digest(tokens), tokens=tuple(tokens)),
        options=_options(prepared.limits, sampling, prepared.limit - len(tokens)),
        seed=str(sampling.seed),
        ends=tuple(sorted(prepared.ends)),
        output=(),
        end=End(reason="length"),
        chain=_NO_CHAIN,
    )
    receipt.head()  # options without canonical JSON are refused before anything is computed
    return ReceiptDraft(wish, receipt)


def shared_rule(rule: str) -> str:
    """Return the part of a backend's rule that its bits depend on: all native backends share it."""
    return " ".join(rule.split()[:2])


def _options(limits: AnswerOptions, sampling: SamplingOptions, num_predict: int) -> dict[str, Any]:
    found = to_builtins(limits, str_keys=True) | to_builtins(sampling, str_keys=True)
    found["num_predict"] = num_predict
    return {name: value for name, value in found.items() if name not in IRRELEVANT}
