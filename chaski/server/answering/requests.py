"""Checked requests of all dialects. Messages, tools and options have Ollama's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

from chaski.chat.marks import Mark

__all__ = ["ChatRequest", "EmbedRequest", "GenerateRequest", "ModelRequest", "RerankRequest", "ToolChoice"]

ToolChoice = Literal["auto", "none", "required"]


class ModelRequest(Struct, frozen=True, kw_only=True):
    """The fields of all requests.

    options     Ollama's options, checked by type; they take precedence over those of the model
    given_as    name of the request's field for each option that has another name there, for errors
    keep_alive  seconds for which the model stays loaded; None for the server's setting
    format      "json" or a JSON schema that the answer follows
    template_variables  additional variables for the model's template
    lora        numbers and scales of adapters in llama.cpp's API; None if the request contains no list
    prompt_logprobs  number of top log-probabilities to return for each token of the prompt; None for none
    draw        as in `chaski.chat.requests.Generate`
    """

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    given_as: Mapping[str, str] = field(default_factory=dict)
    keep_alive: float | None = None
    stream: bool = True
    format: Any = None
    think: bool | str | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    lora: Sequence[tuple[int, float]] | None = None
    draw: int = 0


class ChatRequest(ModelRequest, frozen=True, kw_only=True):
    """Request to answer a conversation. Messages may contain `images`, which are files as bytes.

    tool_choice  "auto", "none", "required", or the name of the only tool to call
    drops_think  whether `think` is ignored instead of refused if the model cannot think
    thinks_unasked  whether a model that can think does so if `think` is None
    ignored      names of parts of the request that are ignored
    custom_tools names of tools whose arguments are returned as plain text instead of JSON
    marks        positions up to which the prompt stays cached for a time
    begun        text that the answer begins with
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice | str = "auto"
    parallel_calls: bool = True
    drops_think: bool = False
    thinks_unasked: bool = True
    ignored: Sequence[str] = ()
    custom_tools: frozenset[str] = frozenset()
    marks: Sequence[Mark] = ()
    begun: str = ""


class GenerateRequest(ModelRequest, frozen=True, kw_only=True):
    """Request to answer a prompt, to continue it as it is (`raw`), or to fill in text before `suffix`.

    context  tokens of an earlier conversation that precede the prompt
    images   image files as bytes
    token_ids  the prompt as tokens instead of text
    echoes   whether the prompt is returned before the answer
    begun    beginning of the text to fill in; if it is None, text is filled in only if there is a suffix
    """

    prompt: str
    suffix: str = ""
    system: str | None = None
    template: str | None = None
    context: Sequence[int] = ()
    raw: bool = False
    images: Sequence[bytes] = ()
    returns_context: bool = False
    token_ids: Sequence[int] = ()
    echoes: bool = False
    begun: str | None = None

    @property
    def fills_in(self) -> bool:
        """True if the answer belongs between two texts."""
        return bool(self.suffix) or self.begun is not None


class EmbedRequest(ModelRequest, frozen=True, kw_only=True):
    """Request for vectors of texts or of lists of tokens.

    dimensions  number of values to keep of each vector, whose length is then made 1 again
    """

    inputs: Sequence[str | Sequence[int]]
    dimensions: int | None = None
    normalize: bool = True


class RerankRequest(ModelRequest, frozen=True, kw_only=True):
    """Request to rank documents by their relevance to a query.

    top_n              number of the best documents to return
    returns_documents  whether the result contains the texts of the documents
    """

    query: str
    documents: Sequence[str]
    top_n: int
    returns_documents: bool = False
