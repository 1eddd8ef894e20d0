"""Prompts of conversations, texts and options that fit into a context, for every engine."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from chaski.chat.answer_parser import AnswerParser
from chaski.chat.arguments import check_roles
from chaski.chat.choice import choose_chat_format, go_format
from chaski.chat.constraints import (
    has_budget,
    is_constrained,
    require_no_other,
    require_unconstrained,
    with_prefix,
)
from chaski.chat.conversation import Conversation
from chaski.chat.defaults import Defaults
from chaski.chat.demanded_calls import DemandedCall, chosen_tools, schema_of_call
from chaski.chat.efforts import Effort, effort_of, template_level
from chaski.chat.encoding import PromptEncoder, TokenConfig
from chaski.chat.events import Event, PromptTokens
from chaski.chat.file_templates import file_templates, fill_in_tokens
from chaski.chat.formats import Message
from chaski.chat.images import ImageReader
from chaski.chat.layout import Prompt, marked, shown_placeholders, typed_placeholders, with_placeholders
from chaski.chat.marks import Hold, Holds, altered, common_length
from chaski.chat.options import AnswerOptions, constraints_of, merged_options, parse_options
from chaski.chat.requests import Chat, Fill, Generate
from chaski.chat.shortening import shortened
from chaski.chat.sources import StoredFormat, TemplateSources
from chaski.chat.turn_ends import turn_ends
from chaski.errors import OptionError, TemplateError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.multimodal import Image
from chaski.sample import SamplingOptions

if TYPE_CHECKING:
    from chaski.chat.formats import ChatFormat
    from chaski.text.parsers import Parser

__all__ = ["Prepared", "PromptBuilder"]

# An answer without limit and end token ends after this many contexts (as in Ollama).
_ENDLESS_CONTEXTS = 10
# Answers of agents seldom have more tokens. The number must not grow with the context: a model that was
# loaded again for a request would be too small for the same request.
_ANSWER_ROOM = 2048
# As in llama.cpp: until the context is full.
_TO_THE_END = -2
_MAX_FORMATS = 64
# The tags that parsers look for are control tokens in many models.
_PARSED: Mapping[str, Any] = {"special": True}

_log = logging.getLogger(__name__)

Steering = Callable[[Items[Mapping[str, Any]], Mapping[str, Any]], dict[str, Any]]


class Prepared(Struct, frozen=True, kw_only=True):
    """A checked request for an answer, with its prompt.

    prompt    tokens, no more than the context holds
    read_tokens  tokens of the prompt that an encoder reads; 0 if all are in `prompt`
    dropped   number of tokens that the prompt lost to fit
    limit     number of tokens, those of the prompt included, at which the sequence ends
    context   number of tokens that the context holds
    num_keep  number of first tokens that a context shift keeps; None ends the answer at a full context
    parser    parser of the answer; None if its text is the answer
    told      event with the tokens of the prompt, if the request wants one
    holds     first tokens of the prompt that are kept for the marks of the request
    begun     events of the text that the answer begins with
    ends      tokens that end the answer in addition to those of the vocabulary
    """

    prompt: Prompt
    read_tokens: int = 0
    dropped: int
    limit: int
    context: int
    num_keep: int | None
    limits: AnswerOptions
    sampling: SamplingOptions
    parser: AnswerParser | None = None
    told: PromptTokens | None = None
    holds: Holds = ()
    begun: Items[Event] = ()
    ends: frozenset[int] = frozenset()


class PromptBuilder(PromptEncoder):
    """Makes the prompts of requests to one loaded model. Safe to use from several threads.

    `steering`, if it is set, is called with the messages and the options of a conversation without tools, and
    returns the options to use.
    """

    def __init__(
        self,
        file: GGUFFile,
        config: TokenConfig,
        context: int,
        defaults: Defaults,
        vision: ImageReader | None = None,
        max_context: int = 0,
    ) -> None:
        super().__init__(file, config, context, vision, max_context)
        self.defaults = defaults
        self.steering: Steering | None = None
        self._formats: OrderedDict[tuple[StoredFormat, str | None], ChatFormat] = OrderedDict()
        self._lock = Lock()
        self._is_warned = False

    @property
    def chat_template(self) -> str | None:
        """The template of conversations, in Jinja or Go's language; None if the model lacks one.

        A template that cannot be read is returned all the same.
        """
        try:
            return self.chat_format.source
        except (TemplateError, UnsupportedError):
            return self.defaults.template or file_templates(self._file)[0]

    @cached_property
    def chat_format(self) -> ChatFormat:
        """The chat format of the model. Raises TemplateError or UnsupportedError."""
        return self._format_of(self.defaults.stored_format(self._name), None)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Capabilities of the model's prompts in Ollama's terms: tools, insert, thinking."""
        try:
            found = self.chat_format.capabilities
        except (TemplateError, UnsupportedError):
            return ()
        fills_in = "insert" not in found and fill_in_tokens(self._file) is not None
        return (*found, "insert") if fills_in else found

    def prepare(self, request: Generate | Chat | Fill, images: Items[Image] = ()) -> Prepared:
        """Prepare an answer; `images` are those that the request counts.

        Raises OptionError for a prompt that does not fit, unless it may be shortened, UnsupportedError for
        features that the model lacks, and TemplateError.
        """
        match request:
            case Generate():
                return self._continuation(request, images)
            case Chat():
                return self._answer(request, images)
            case Fill():
                return self._filling(request, images)

    def conversation_prompt(self, request: Chat, images: Items[Image] = ()) -> Prompt:
        """Return the whole prompt of a conversation."""
        return self._written(self._conversation(request), request, images)[1]

    def chat_tokens(self, request: Chat) -> list[int]:
        """Return the ids of the prompt of a conversation, all of it; rows of images are as in `tokens`."""
        seen = self.read_images(request.images)
        return marked(self.conversation_prompt(request, seen), seen)

    def conversation_text(self, request: Chat) -> str:
        """Return the text of a conversation, with `[img-0]` for its first image, and so on."""
        return shown_placeholders(self._conversation(request).render())

    def _continuation(self, request: Generate, images: Items[Image]) -> Prepared:
        """Prepare an answer that continues a prompt; images come at its placeholders or else first."""
        prompt = request.prompt if isinstance(request.prompt, str) else ""
        options = {**self._raw_prefix(prompt, request.options), **request.options}
        return self._prepared(request, self._laid_out(request.prompt, images), options)

    def _raw_prefix(self, prompt: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the option for the thought before the answer to a raw prompt, where it has a budget."""
        options = merged_options(self.defaults.options, given)
        if not has_budget(options) or is_constrained(options):
            return {}
        with suppress(TemplateError, UnsupportedError):
            if "thinking" in self.chat_format.capabilities:
                return with_prefix(self.chat_format, self.chat_format.parser(prompt).lead, options)
        return {}

    def _answer(self, request: Chat, images: Items[Image]) -> Prepared:
        """Prepare the answer to a conversation whose messages count these images.

        A conversation that does not fit loses its oldest turns first, if that is allowed.
        """
        conversation = self._conversation(request)
        options = merged_options(self.defaults.options, request.options)
        text, prompt = self._written(conversation, request, images)
        whole = len(prompt.tokens)
        shortens = options.get("truncate") if request.shortens is None else request.shortens
        if whole > self.context and shortens and not request.can_reload:
            text, prompt = self._written(self._shortened(conversation, request, images), request, images)
        if request.begun:
            require_unconstrained(constraints_of(options), request.tool_choice)
        elif self.steering is not None and not conversation.tools:
            options = self.steering(request.messages, options)
        is_demanded = bool(conversation.tools) and request.tool_choice not in ("auto", "none")
        tools = () if is_demanded else conversation.tools
        parser: Parser = conversation.chat_format.parser(
            text.removesuffix(request.begun), tools, bool(conversation.think), conversation.begun_thought
        )
        if is_demanded:
            require_no_other(constraints_of(options))
            parser = DemandedCall(parser)
            options["format"] = schema_of_call(conversation.tools)
        effort = effort_of(request.think)
        holds = () if len(prompt.tokens) != whole else tuple(self._holds(request, images, text, prompt))
        answer = AnswerParser(parser, request.parallel_calls)
        begun = answer.begin(request.begun) if request.begun else ()
        lead = None if conversation.has_begun_answer(text.removesuffix(request.begun)) else parser.lead
        prepared = self._prepared(
            request,
            prompt,
            {
                **_PARSED,
                **with_prefix(conversation.chat_format, lead, options, effort, bool(tools)),
                **options,
            },
            whole - len(prompt.tokens),
            answer,
            effort,
        )
        prepared = replace(prepared, begun=begun, ends=turn_ends(conversation.chat_format, self.tokenizer))
        return prepared if prepared.dropped else replace(prepared, holds=holds)

    def _holds(self, request: Chat, images: Items[Image], text: str, prompt: Prompt) -> Iterator[Hold]:
        """Yield how many tokens of the prompt are before each mark, and the seconds to keep them.

        They are those of the text that it has in common with the text of a conversation that differs from the
        mark on. A mark is left out where the template refuses such a conversation.
        """
        for mark in request.marks:
            messages = altered(request.messages, mark)
            if messages is None:
                yield len(prompt.tokens), mark.seconds
                continue
            with suppress(TemplateError, OptionError):
                conversation = self._conversation(replace(request, messages=tuple(messages)))
                shown = _shown(conversation, images)
                placed = with_placeholders(text, len(shown))
                other = with_placeholders(conversation.render(), len(shown))
                begun = self._read_placed(placed[: common_length(placed, other)], shown, request)
                yield common_length(prompt.tokens, begun.tokens), mark.seconds

    def _filling(self, request: Fill, images: Items[Image]) -> Prepared:
        """Prepare the text between two texts, by a template or by the tokens that the file names for it.

        Raises UnsupportedError if there is neither.
        """
        chat_format = self._chosen_format(request.stored, request.template)
        text = chat_format.fill_in(request.prompt, request.suffix, fill_in_tokens(self._file))
        whole = with_placeholders(typed_placeholders(text + request.begun), len(images))
        prompt = self._read_text(whole, images, self._with_bos)
        return self._prepared(request, prompt, request.options)

    def _conversation(self, request: Chat) -> Conversation:
        """Check a conversation, and put the model's own turns before it."""
        chat_format = self._chosen_format(request.stored, request.template)
        name = request.stored.name if request.stored else self._name
        if chat_format.source is None and not self._is_warned:
            self._is_warned = True
            _log.warning("%s has no chat template: it gets plain text, without roles", name)
        tools = chosen_tools(request.tools, request.tool_choice)
        if tools and chat_format.source is not None and "tools" not in chat_format.capabilities:
            raise UnsupportedError(f"{name} does not support tools: its chat template leaves them out")
        check_roles(request.messages, chat_format.knows_role)
        effort = effort_of(request.think)
        options = merged_options(self.defaults.options, request.options)
        budget = options.get("reasoning_budget", None if effort is None else effort.budget)
        variables = {**chat_format.budget_variables(budget), **request.variables}
        asked = False if budget == 0 else template_level(request.think)
        think = chat_format.thinking(asked)
        if think and "thinking" not in chat_format.capabilities:
            raise OptionError(f'"{name}" does not support thinking')
        messages = self.defaults.conversation(request.messages)
        return Conversation(chat_format, messages, tools, think, variables)

    def _written(self, conversation: Conversation, request: Chat, images: Items[Image]) -> tuple[str, Prompt]:
        """Return the text and the prompt of a conversation, after tokens of an earlier one."""
        shown = _shown(conversation, images)
        text = conversation.render() + request.begun
        return text, self._read_placed(with_placeholders(text, len(shown)), shown, request)

    def _read_placed(self, text: str, shown: Items[Image], request: Chat) -> Prompt:
        """Return the prompt of a text with placeholders for the images of a conversation."""

        def first(piece: str) -> list[int]:
            ids = self._with_bos(piece)
            if not request.context:
                return ids
            begun = [token for token in request.context if 0 <= token < self._vocab_size]
            return begun + (ids[1:] if ids[:1] == [self.tokenizer.bos_id] else ids)

        return self._read_text(text, shown, first)

    def _shortened(self, whole: Conversation, request: Chat, images: Items[Image]) -> Conversation:
        """Return a conversation without its oldest turns, as few as possible; the last one stays."""

        def fits(messages: Items[Message]) -> bool:
            _, prompt = self._written(whole.with_messages(messages), request, images)
            return len(prompt.tokens) <= self.context

        return whole.with_messages(shortened(whole.messages, fits))

    def _chosen_format(self, stored: StoredFormat | None, template: str | None) -> ChatFormat:
        if stored is None and template is None:
            return self.chat_format
        return self._format_of(stored or self.defaults.stored_format(self._name), template)

    def _format_of(self, stored: StoredFormat, template: str | None) -> ChatFormat:
        """Return a format that was asked for lately, or make it."""
        with self._lock:
            if (stored, template) in self._formats:
                self._formats.move_to_end((stored, template))
                return self._formats[stored, template]
        sources = TemplateSources.of(self._file, stored)
        found = choose_chat_format(sources) if template is None else go_format(template, sources)
        with self._lock:
            self._formats[stored, template] = found
            while len(self._formats) > _MAX_FORMATS:
                self._formats.popitem(last=False)
        return found

    def _prepared(
        self,
        request: Generate | Chat | Fill,
        whole: Prompt,
        options: Mapping[str, Any],
        dropped: int = 0,
        parser: AnswerParser | None = None,
        effort: Effort | None = None,
    ) -> Prepared:
        self._require_text()
        merged = merged_options(self.defaults.options, options)
        limits, sampling = parse_options(merged)
        if sampling.seed is None:
            sampling = replace(sampling, seed=request.usual_seed)
        elif request.draw:
            sampling = replace(sampling, seed=sampling.seed + request.draw)
        if request.can_reload:
            self._require_room(len(whole.tokens), limits)
        fitted = self._fitted(whole, limits)
        prompt = self._encoded(fitted)
        self._require_tokens(sampling.logit_bias)
        self._require_tokens(limits.stop_token_ids)
        limit = self._limit(len(prompt.tokens), limits)
        if effort is not None and "reasoning_budget" not in merged:
            limits = replace(limits, reasoning_budget=effort.budget_of(limit - len(prompt.tokens)))
        told = PromptTokens(len(whole.tokens), tuple(token for token in fitted.tokens if token >= 0))
        return Prepared(
            prompt=prompt,
            read_tokens=0 if prompt is fitted else len(fitted.tokens),
            dropped=dropped + len(whole.tokens) - len(fitted.tokens),
            limit=limit,
            context=self.context,
            num_keep=self._num_keep(prompt, limits) if self._shifts(limits) else None,
            limits=limits,
            sampling=sampling,
            parser=parser,
            told=told if request.tells_prompt else None,
        )

    def _fitted(self, prompt: Prompt, limits: AnswerOptions) -> Prompt:
        """Return the prompt, shortened after its beginning if it is too long and that is allowed."""
        excess = len(prompt.tokens) - self.context
        if excess <= 0:
            return prompt
        if not limits.truncate:
            self._require_fit(len(prompt.tokens))
        return prompt.shortened(excess, self._num_keep(prompt, limits))

    def _require_room(self, length: int, limits: AnswerOptions) -> None:
        """Raise ContextLengthError where a prompt leaves no room for an answer of a usual length."""
        is_limited = limits.num_predict >= 0
        needed = length + (min(limits.num_predict, _ANSWER_ROOM) if is_limited else _ANSWER_ROOM)
        if needed > self.context:
            raise self._too_long("prompt and answer need", needed)

    def _num_keep(self, prompt: Prompt, limits: AnswerOptions) -> int:
        has_bos = prompt.tokens[0] == self.tokenizer.bos_id
        return min(max(limits.num_keep, has_bos), self.context - 1)

    def _limit(self, prompt_tokens: int, limits: AnswerOptions) -> int:
        """Return how many tokens prompt and answer may have. The last one needs no room in the context."""
        predict = limits.num_predict if limits.num_predict >= 0 else _ENDLESS_CONTEXTS * self.context
        end = prompt_tokens + predict
        return end if self._shifts(limits) else min(end, self.context + 1)

    def _shifts(self, limits: AnswerOptions) -> bool:
        """Return whether the answer continues, by a context shift, where the context is full."""
        return limits.shift and limits.num_predict != _TO_THE_END


def _shown(conversation: Conversation, images: Items[Image]) -> list[Image]:
    """Return the images of a conversation in the order of its messages."""
    return [images[index] for message in conversation.messages for index in message.get("images") or ()]
