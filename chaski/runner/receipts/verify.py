"""`verify`: computes the answer of a receipt again, and compares every field and step."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

from msgspec import Struct

from chaski.chat.answer import Answer
from chaski.chat.defaults import Defaults
from chaski.errors import OptionError, ReceiptError
from chaski.receipts.chain import chain_of
from chaski.receipts.receipt import Receipt, token_digest
from chaski.receipts.signing import has_valid_signature, read_key
from chaski.runner.generation.replay import Difference, ending
from chaski.runner.llm import LLM
from chaski.runner.loading.files import OpenedModel
from chaski.runner.loading.loader import load_parts
from chaski.runner.loading.parts import ModelParts, PartOptions
from chaski.runner.loading.pulling import find_or_pull
from chaski.runner.receipts.draft import shared_rule
from chaski.runner.results import outputs_of
from chaski.same_bits import UsualFloats
from chaski.store.store import Store

__all__ = ["Verification", "load_for", "stored_model", "verify"]

_BATCH_OUTPUTS = 128
"""Rows of logits that a model computes at once when it is loaded to verify."""
_REFERENCE = "reference"


class Verification(Struct, frozen=True):
    """The result of verifying a receipt.

    differences  fields and the first step that differ; empty if the receipt is true
    num_steps    number of tokens of the answer
    num_checked  number of them that were computed again and compared
    num_near     of these, those that agree only within the tolerance of the reference
    signed_by    public key of a valid signature; None if there is none
    """

    differences: tuple[Difference, ...]
    num_steps: int
    num_checked: int
    num_near: int = 0
    signed_by: str | None = None

    @property
    def is_same(self) -> bool:
        """True if everything that was compared is the same."""
        return not self.differences

    def __str__(self) -> str:
        if self.is_same:
            near = f", {self.num_near} within the tolerance of the reference" if self.num_near else ""
            return f"same: {self.num_checked} of {self.num_steps} steps compared{near}"
        return "\n".join(
            f"{each.place} differs: the receipt has {each.receipt}, found {each.found}"
            for each in self.differences
        )


def verify(
    receipt: Receipt | Answer | Mapping[str, Any] | bytes | str,
    model: LLM | str | os.PathLike[str],
    *,
    prompt: Items[int] | None = None,
    sample: int | None = None,
    key: str | None = None,
    reference: bool = False,
    adapters: Items[str | os.PathLike[str]] = (),
) -> Verification:
    """Compute the answer of a receipt again, all steps as one prompt, and compare fields and steps.

    receipt    a receipt, or its JSON as an object, a text or bytes, or an answer that has one
    model      a loaded model, or the name or path of one to load; a receipt never chooses a file
    prompt     tokens of the prompt, for a receipt that leaves them out
    sample     number of steps to compare, which are drawn at random; all by default
    key        the public key that must have signed it
    reference  load the model with the backend `reference`, which shares no kernel with the others
    adapters   GGUF files of the LoRA adapters of the answer, for a model that is loaded here

    Raises ReceiptError for what is no receipt or cannot be verified, OptionError, and the errors of loading.
    """
    found = _receipt(receipt)
    if sample is not None and sample < 1:
        raise OptionError(f"sample is {sample}; it must be at least 1")
    fixed = _checked_texts(found, key, prompt)
    tokens = _prompt(found, prompt)
    if isinstance(model, LLM):
        if reference or adapters:
            raise OptionError("reference and adapters are for loading; give the name or the path of a model")
        return _verified(found, model, tokens, fixed, sample)
    with load_for(found, model, reference, adapters) as loaded:
        return _verified(found, loaded, tokens, fixed, sample)


def load_for(
    receipt: Receipt,
    model: str | os.PathLike[str],
    reference: bool = False,
    adapters: Items[str | os.PathLike[str]] = (),
) -> LLM:
    """Load a model with the settings that a receipt names, except for the file. Raises what loading does."""
    found = find_or_pull(model, False)
    opened = found if isinstance(found, OpenedModel) else OpenedModel.of(found)
    part = receipt.model
    options = PartOptions(
        context=part.context,
        parallel=1,
        num_outputs=_BATCH_OUTPUTS,
        kv_type=part.kv_type,
        flash_attention=part.attention == "flash",
    )
    files = {f"adapter-{number}": os.fspath(path) for number, path in enumerate(adapters)}
    parts = ModelParts.of(opened, options)
    # Defaults of a stored model are not part of it: a receipt has all of its options.
    return load_parts(parts, Defaults(), _REFERENCE if reference else None, False, adapters=files)


def stored_model(receipt: Receipt) -> str:
    """Return the name of the stored or bundled model whose file a receipt names. Raises ReceiptError."""
    files = receipt.model.files
    for entry in Store.default().entries():
        if any(layer.kind == "model" and layer.digest.hex == files[0] for layer in entry.manifest.layers):
            return entry.name.short
    raise ReceiptError(
        f"no stored model has the file {files[0][:12]} that the receipt names; name its model with --model"
    )


def _receipt(value: Receipt | Answer | Mapping[str, Any] | bytes | str) -> Receipt:
    if isinstance(value, Answer):
        if value.receipt is None:
            raise ReceiptError("the answer has no receipt; ask for it with receipt=True")
        return value.receipt
    if isinstance(value, Receipt):
        return value
    if isinstance(value, bytes | str):
        return Receipt.read(value.encode(errors="replace") if isinstance(value, str) else value)
    return Receipt.of(value)


def _prompt(receipt: Receipt, given: Items[int] | None) -> Items[int]:
    tokens = receipt.prompt.tokens if given is None else given
    if tokens is None:
        raise ReceiptError(
            f"the receipt has only the digest of its prompt of {receipt.prompt.count} tokens; give the prompt"
        )
    if not tokens:
        raise ReceiptError("the prompt of the receipt has no tokens")
    return tokens


def _checked_texts(receipt: Receipt, key: str | None, prompt: Items[int] | None) -> list[Difference]:
    """Return the differences that need no model: the signature, the prompt and the chain."""
    found = []
    signature, is_valid = receipt.signature, has_valid_signature(receipt)
    if signature is not None and not is_valid:
        found.append(Difference("signature", f"one by {signature.key}", "that it is not valid"))
    if key is not None:
        wanted, signer = read_key(key), None if signature is None else signature.key
        if signer != wanted:
            found.append(Difference("signature.key", signer or "no signature", wanted))
    tokens = receipt.prompt.tokens if prompt is None else prompt
    if tokens is not None and (digest := _digest(tokens)) != receipt.prompt.digest:
        found.append(Difference("prompt.digest", receipt.prompt.digest, digest))
    if tokens is not None and len(tokens) != receipt.prompt.count:
        found.append(Difference("prompt.count", str(receipt.prompt.count), str(len(tokens))))
    return found + _checked_chain(receipt)


def _digest(tokens: Items[int]) -> str:
    try:
        return token_digest(tokens)
    except (AttributeError, OverflowError):
        raise OptionError("the prompt must be a list of token ids") from None


def _checked_chain(receipt: Receipt) -> list[Difference]:
    chain = receipt.chain
    if chain.links is None:
        last = chain_of(receipt, 0, [b""] * len(receipt.output)).last
    else:
        last = (chain.links or (receipt.head().hex(),))[-1]
    return [] if last == chain.last else [Difference("chain.last", chain.last, last)]


@UsualFloats()
def _verified(
    receipt: Receipt, model: LLM, prompt: Items[int], fixed: list[Difference], sample: int | None
) -> Verification:
    differences = fixed + _checked_model(receipt, model)
    signature = receipt.signature
    signer = signature.key if signature is not None and has_valid_signature(receipt) else None
    num_steps = len(receipt.output)
    if any(each.place.startswith(("model", "rule")) for each in differences):
        return Verification(tuple(differences), num_steps, 0, signed_by=signer)
    _require_tokens(receipt, prompt, model.vocab_size)
    replay, request = model.prompts.replay(receipt, prompt, _steps(num_steps, sample))
    if num_steps:
        outputs_of(model.engine, [replay])
    if replay.difference is not None:
        differences.append(replay.difference)
    else:
        count, end = ending(request, receipt)
        if (count, end) != (num_steps, receipt.end):
            said = f"{receipt.end.reason} {receipt.end.stop or ''}".strip()
            reason = "no end" if end is None else f"{end.reason} {end.stop or ''}".strip()
            differences.append(
                Difference(
                    "end",
                    f"{said!r:.80} after step {num_steps - 1}",
                    f"{reason!r:.80} after step {count - 1}",
                )
            )
    return Verification(tuple(differences), num_steps, replay.num_checked, replay.num_near, signer)


def _checked_model(receipt: Receipt, model: LLM) -> list[Difference]:
    """Return the differences of the rule, of the model's files and of the settings of loading it."""
    said, here = receipt.model, model.prompts.model_part()
    pairs: list[tuple[str, object, object]] = [
        ("model.architecture", said.architecture, here.architecture),
        ("model.kv_type", said.kv_type, here.kv_type),
        ("model.attention", said.attention, here.attention),
    ]
    if model.prompts.depends_on_context:
        pairs.append(("model.context", said.context, here.context))
    names = [f"model.files[{index}]" for index in range(max(len(said.files), len(here.files)))]
    padded = [(*files, *["no file"] * (len(names) - len(files))) for files in (said.files, here.files)]
    pairs += zip(names, *padded, strict=True)
    rule = shared_rule(model.prompts.rule)
    if not rule.startswith(_REFERENCE):
        pairs.append(("rule", receipt.rule, rule))
    return [Difference(name, str(a), str(b)) for name, a, b in pairs if a != b]


def _require_tokens(receipt: Receipt, prompt: Items[int], size: int) -> None:
    """Raise ReceiptError for a token that the model's vocabulary lacks."""
    for place, tokens in (("prompt", prompt), ("output", receipt.output), ("ends", receipt.ends)):
        outside = next((token for token in tokens if not 0 <= token < size), None)
        if outside is not None:
            raise ReceiptError(
                f"{place} of the receipt has the token {outside}, but the model has {size} tokens"
            )


def _steps(num_steps: int, sample: int | None) -> Items[int]:
    """Return the steps to compare. They are unpredictable, so that no one can cheat in the others."""
    if sample is None or sample >= num_steps:
        return range(num_steps)
    return sorted(random.SystemRandom().sample(range(num_steps), sample))
