"""`Receipt`: what determined an answer, the tokens of the answer, and a chain of hashes over its steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from chaski.errors import ReceiptError
from chaski.formats.bounded_json import TooManyValuesError, load_json
from chaski.receipts.canonical import canonical_json
from chaski.receipts.wish import MAX_TOP

__all__ = [
    "FORMAT",
    "MAX_BYTES",
    "AdapterPart",
    "Chain",
    "End",
    "ModelPart",
    "PromptPart",
    "Receipt",
    "Signature",
    "token_digest",
]

FORMAT: Final = "chaski-receipt-1"

MAX_BYTES = 64 << 20
"""Bytes of the JSON of a receipt."""
_MAX_VALUES = 4_000_000
_MAX_TOKENS = 1 << 20

Digest: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
"""A SHA-256 in hexadecimal."""
Word: TypeAlias = Annotated[str, Meta(max_length=200)]
Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
TokenIds: TypeAlias = Annotated[tuple[Count, ...], Meta(max_length=_MAX_TOKENS)]
Base64: TypeAlias = Annotated[str, Meta(pattern="^[A-Za-z0-9+/]{0,100}={0,2}$")]


class _Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An object of a receipt. Unknown fields are refused: they could change what it says."""


class ModelPart(_Part, frozen=True, kw_only=True):
    """The model, and the settings of loading it that change the bits of its answers.

    files      SHA-256 of each file with its tensors, in the order of the parts
    kv_type    type of keys and values, or two as `keys:values`
    attention  "flash" takes the history chunk by chunk; "plain" computes all scores first
    context    tokens that a sequence may hold; some models choose constants by it
    """

    architecture: Word
    files: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=1000)]
    kv_type: Word
    attention: Literal["flash", "plain"]
    context: Count


class AdapterPart(_Part, frozen=True, kw_only=True):
    """A LoRA adapter: the SHA-256 of its matrices as `chaski.formats.adapter` defines it, and its scale."""

    digest: Digest
    scale: float


class PromptPart(_Part, frozen=True, kw_only=True):
    """The prompt: number and digest of its tokens, and the tokens unless they are left out."""

    count: Count
    digest: Digest
    tokens: TokenIds | None = None


class End(_Part, frozen=True, kw_only=True):
    """The reason for which the answer ended, and the stop text that ended it, if one did."""

    reason: Literal["stop", "length"]
    stop: Annotated[str, Meta(max_length=65_536)] | None = None


class Chain(_Part, frozen=True, kw_only=True):
    """The chain of hashes over the steps; see `chaski.receipts.chain`.

    top_logits  number of largest logits of each step that the hashes cover
    last        last link
    links       all links, with `top_logits` only: they tell which step has other logits
    """

    top_logits: Annotated[int, Meta(ge=0, le=MAX_TOP)] = 0
    last: Digest
    links: Annotated[tuple[Digest, ...], Meta(max_length=_MAX_TOKENS)] | None = None


class Signature(_Part, frozen=True, kw_only=True):
    """A signature: the public key of 32 bytes and the signature of 64 bytes, in Base64."""

    algorithm: Literal["Ed25519"] = "Ed25519"
    key: Base64
    value: Base64


class Receipt(_Part, frozen=True, kw_only=True):
    """The receipt of an answer.

    engine   program and version that computed it, for information
    rule     version of the numeric rule
    options  every option that can change the tokens, under the names of docs/options.md
    seed     decimal digits of the seed, which may exceed what a JSON number represents
    ends     tokens that end a turn of the conversation's format, in addition to those of the model's file
    output   all sampled tokens, an end token included
    """

    format: Literal["chaski-receipt-1"] = FORMAT
    engine: Word
    rule: Word
    model: ModelPart
    adapters: Annotated[tuple[AdapterPart, ...], Meta(max_length=256)] = ()
    prompt: PromptPart
    options: dict[str, Any]
    seed: Annotated[str, Meta(pattern="^(0|[1-9][0-9]{0,19})$")]
    ends: TokenIds = ()
    output: TokenIds
    end: End
    chain: Chain
    signature: Signature | None = None

    @classmethod
    def read(cls, data: bytes, where: str = "the receipt") -> Receipt:
        """Read the JSON of a receipt. Raises ReceiptError."""
        return cls.of(load(data, where), where)

    @classmethod
    def of(cls, value: Any, where: str = "the receipt") -> Receipt:
        """Read the parsed JSON of a receipt. Raises ReceiptError."""
        try:
            receipt = convert(value, cls)
        except (ValidationError, UnicodeEncodeError) as error:  # a name with half of a surrogate pair
            raise ReceiptError(f"{where} is no receipt of format {FORMAT}: {error!s:.300}") from None
        links = receipt.chain.links
        if (links is not None) != bool(receipt.chain.top_logits) or (
            links is not None and len(links) != len(receipt.output)
        ):
            raise ReceiptError(
                f"{where}: chain.links must have a link for each of the {len(receipt.output)} output tokens "
                "if chain.top_logits is above 0, and must be absent otherwise"
            )
        return receipt

    def fields(self) -> dict[str, Any]:
        """Return the receipt as an object of JSON. Fields without a value are left out."""
        found: dict[str, Any] = to_builtins(self)
        for owner, name in ((found, "signature"), (found["prompt"], "tokens"), (found["end"], "stop")):
            if owner[name] is None:
                del owner[name]
        if self.chain.links is None:
            del found["chain"]["links"]
        return found

    def text(self) -> str:
        """Return its canonical JSON."""
        return canonical_json(self.fields()).decode()

    def without_prompt(self) -> Receipt:
        """Return the receipt without the tokens of the prompt. Chain and signature stay valid."""
        return replace(self, prompt=replace(self.prompt, tokens=None))

    def head(self) -> bytes:
        """Return the SHA-256 of everything that was known before the first step."""
        found = self._covered()
        for name in ("output", "end", "chain"):
            del found[name]
        return hashlib.sha256(canonical_json(found)).digest()

    def signed_bytes(self) -> bytes:
        """Return the bytes that a signature covers: all but itself and the tokens of the prompt."""
        return canonical_json(self._covered())

    def _covered(self) -> dict[str, Any]:
        found = self.without_prompt().fields()
        found.pop("signature", None)
        return found


def load(data: bytes, where: str) -> Any:
    """Return the value of a JSON text within the limits of a receipt. Raises ReceiptError."""
    if len(data) > MAX_BYTES:
        raise ReceiptError(f"{where} has more than {MAX_BYTES >> 20} MB, the limit of a receipt")
    try:
        return load_json(data, _MAX_VALUES)
    except (ValueError, RecursionError, TooManyValuesError) as error:
        raise ReceiptError(f"{where} cannot be read: {error!s:.200}") from None


def token_digest(token_ids: Sequence[int]) -> str:
    """Return the SHA-256 of token ids, each as a little-endian integer of four bytes."""
    return hashlib.sha256(token_bytes(token_ids)).hexdigest()


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Return token ids as little-endian integers of four bytes."""
    return b"".join(token.to_bytes(4, "little") for token in token_ids)
