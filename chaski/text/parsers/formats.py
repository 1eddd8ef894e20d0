"""The table of formats in which model families write thoughts and calls, and the choice by template.

The names are those that Ollama stores with a model as its parser; other families have names from chaski.
Sources: the models' chat templates and cards.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from chaski.errors import UnsupportedError
from chaski.text.parsers.blocks import BareList, CallBlock, NamedCall, QuotedBy
from chaski.text.parsers.glimmer import GlimmerParser
from chaski.text.parsers.harmony import HarmonyParser
from chaski.text.parsers.pieces import Lead, Parser
from chaski.text.parsers.python_text import PythonStrings
from chaski.text.parsers.readers import (
    read_actions,
    read_braces,
    read_json,
    read_json_or_python,
    read_keyed_json,
    read_known_json,
    read_named_json,
    read_python,
)
from chaski.text.parsers.recipients import RecipientParser
from chaski.text.parsers.schema import Tools, names_of
from chaski.text.parsers.stream import Block, StreamParser
from chaski.text.parsers.tags import Opening, TagBlock

_THINK = ("<think>", "</think>")


class Format(Struct, frozen=True):
    """The answer format of a family: blocks of calls, tags of thinking, and `silent` tags to drop.

    thinks   whether its models think; a model that does not may still write the tags
    special  the tags of thinking are never text: they count anywhere, even if thinking is off
    wrapping silent tags around answers after thoughts; they count if the template makes the model think, or
             has written an empty thought
    named    calls are also the name of a tool on a line, then its arguments, at the start of the answer
    spelling the text before a list of calls in past answers, for templates that do not write calls
    answering the text between the closing tag of a thought and the answer, for templates that drop thoughts
    """

    blocks: tuple[Block, ...] = ()
    thinking: tuple[str, str] | None = _THINK
    silent: tuple[str, ...] = ()
    thinks: bool = True
    special: bool = False
    wrapping: tuple[str, ...] = ()
    named: bool = False
    spelling: str = ""
    answering: str = ""


def _invokes(prefix: str, block: str) -> TagBlock:
    """Return a block of `<invoke name="f"><parameter name="p">…`, with a prefix in each tag."""
    return TagBlock(
        Opening(f'<{prefix}invoke name="', ">", quote='"'),
        f"</{prefix}invoke>",
        Opening(f'<{prefix}parameter name="', ">", quote='"'),
        f"</{prefix}parameter>",
        (f"<{block}>", f"</{block}>"),
    )


def _pairs(
    prefix: str = "", suffix: str = "", sep: str = "", block: tuple[str, str] | None = None
) -> TagBlock:
    """Return a block of `<tool_call>f<arg_key>p</arg_key><arg_value>…`, with more in the name of each tag.

    sep: a tag after the name of the function
    """

    def tags(name: str) -> tuple[str, str]:
        return f"<{prefix}{name}{suffix}>", f"</{prefix}{name}{suffix}>"

    (call, end), (key, key_end), (value, value_end) = map(tags, ("tool_call", "arg_key", "arg_value"))
    return TagBlock(Opening(call, sep), end, Opening(key, key_end, value=value), value_end, block)


def _braces(opening: str, closing: str, quote: str) -> CallBlock:
    """Calls as names with arguments in braces, whose texts stand in quotes of their own."""
    return CallBlock(opening, closing, read_braces(quote), lambda: QuotedBy(quote))


_BARE = (CallBlock("{", None, read_known_json, is_bare=True), BareList())
_TOOL_CALLS = CallBlock("<tool_calls>", "</tool_calls>", read_json)
_HERMES = Format((CallBlock("<tool_call>", "</tool_call>", read_json),))
_FUNCTION_TAGS = TagBlock(
    Opening("<function=", ">"), "</function>", Opening("<parameter=", ">"), "</parameter>", framing="\n"
)
_CODER = Format(
    (
        replace(_FUNCTION_TAGS, block=("<tool_call>", "</tool_call>")),
        replace(_FUNCTION_TAGS, orphan="</tool_call>"),
    )
)
_DEEPSEEK = Format(
    (CallBlock("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", read_named_json("<｜tool▁sep｜>")),),
    silent=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)
_MISTRAL = Format(
    (CallBlock("[TOOL_CALLS]", None, read_named_json("[ARGS]"), before_json="[ARGS]"),),
    thinking=("[THINK]", "[/THINK]"),
)
_GEMMA4 = Format(
    (_braces("<|tool_call>", "<tool_call|>", quote='<|"|>'),),
    thinking=("<|channel>thought\n", "<channel|>"),
    silent=("<|tool_response>", "<tool_call|>"),
    special=True,
)
_GLM = Format((_pairs(),))
_PYTHON = CallBlock("<|tool_call_start|>", "<|tool_call_end|>", read_json_or_python, PythonStrings)
_LFM2 = Format((_PYTHON,), thinks=False)
_OLMO3 = Format((replace(_PYTHON, opening="<function_calls>", closing="</function_calls>"),), thinks=False)
_HARMONY = Format(thinking=None)
_GLIMMER = Format(thinking=None)
_FUNCTIONARY = Format(thinking=None, thinks=False)
_HUNYUAN_TAG = ":opensource"
_MINIMAX_M3_TAG = "]<]minimax[>["

FORMATS: Mapping[str, Format] = {
    "apertus": Format(
        (CallBlock("<|tools_prefix|>", "<|tools_suffix|>", read_keyed_json),),
        thinking=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    "apriel": Format(
        (_TOOL_CALLS,),
        thinking=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
        silent=("[END FINAL RESPONSE]",),
    ),
    "bare-json": Format(_BARE),
    "cogito": _DEEPSEEK,
    "cohere": Format(
        (CallBlock("<|START_ACTION|>", "<|END_ACTION|>", read_json),),
        thinking=("<|START_THINKING|>", "<|END_THINKING|>"),
        silent=(
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
            "<|END_OF_TURN_TOKEN|>",
        ),
        answering="<|START_RESPONSE|>",
    ),
    "command-r": Format(
        tuple(CallBlock(f"Action:{blank}```json", "```", read_actions) for blank in ("", " ", "\n"))
    ),
    "deepseek3": _DEEPSEEK,
    "deepseek3.2": Format(
        (
            *(_invokes("｜DSML｜", f"｜DSML｜{block}") for block in ("function_calls", "tool_calls")),
            _invokes("｜DSML｜ ", "｜DSML｜ calls"),
        )
    ),
    "dots": Format((_invokes("", "dots_function_call"),)),
    "ernie": replace(_HERMES, wrapping=("<response>", "</response>"), answering="\n\n<response>\n"),
    "firefunction": Format((CallBlock("functools[", None, read_json),), thinks=False),
    "functionary-3.1": Format(
        (TagBlock(Opening("<function=", ">"), "</function>", Opening("<parameter=", ">"), "</parameter>"),),
        silent=("<|eom_id|>",),
        thinks=False,
    ),
    "functionary-3.2": _FUNCTIONARY,
    "functiongemma": Format(
        (_braces("<start_function_call>", "<end_function_call>", quote="<escape>"),), thinks=False
    ),
    "gemma3": Format(
        (CallBlock("```tool_code", "```", read_python, PythonStrings),), thinking=None, thinks=False
    ),
    "gemma4": _GEMMA4,
    "gemma4-no-thinking": replace(_GEMMA4, thinks=False),
    "gigachat": Format(
        tuple(
            CallBlock(opening, None, read_json)
            for opening in (
                "<|message_sep|>\n\nfunction call<|role_sep|>\n",
                "function call<|role_sep|>\n",
                "<|function_call|>",
            )
        ),
        thinks=False,
    ),
    "glimmer": _GLIMMER,
    "glm-4": Format(_BARE, silent=("<|assistant|>", "<|observation|>"), named=True),
    "glm-4.7": _GLM,
    "glm-ocr": Format(_GLM.blocks, thinking=None, thinks=False),
    # Granite 3: some of its releases spell the control token as text.
    "granite": Format(
        tuple(CallBlock(opening, None, read_json) for opening in ("<|tool_call|>", "<tool_call>")),
        wrapping=("<response>", "</response>"),
        spelling="<|tool_call|>",
        answering="\n<response>",
    ),
    "harmony": _HARMONY,
    "hermes": _HERMES,
    "hunyuan": Format(
        (
            _pairs(
                suffix=_HUNYUAN_TAG,
                sep=f"<tool_sep{_HUNYUAN_TAG}>",
                block=(f"<tool_calls{_HUNYUAN_TAG}>", f"</tool_calls{_HUNYUAN_TAG}>"),
            ),
        ),
        thinking=(f"<think{_HUNYUAN_TAG}>", f"</think{_HUNYUAN_TAG}>"),
    ),
    "hy4": Format((_pairs(block=("<tool_calls>", "</tool_calls>")),)),
    "hunyuan-a13b": Format((_TOOL_CALLS,), wrapping=("<answer>", "</answer>"), answering="\n<answer>\n"),
    "internlm": Format((CallBlock("<|action_start|><|plugin|>", "<|action_end|>", read_json),), thinks=False),
    "kimi-k2": Format(
        (
            CallBlock(
                "<|tool_call_begin|>", "<|tool_call_end|>", read_named_json("<|tool_call_argument_begin|>")
            ),
        ),
        silent=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    "kimi-k3": Format(
        (
            TagBlock(
                Opening('<|open|>call tool="', "<|sep|>", quote='"'),
                "<|close|>call<|sep|>",
                Opening('<|open|>argument key="', "<|sep|>", quote='"'),
                "<|close|>argument<|sep|>",
                ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
            ),
        ),
        thinking=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        silent=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
        special=True,
    ),
    "laguna": _GLM,
    "lfm2": _LFM2,
    "lfm2-thinking": replace(_LFM2, thinks=True),
    "llama4": Format(_BARE, silent=("<|python_start|>", "<|python_end|>")),
    "longcat": Format((_pairs("longcat_"),), thinking=("<longcat_think>", "</longcat_think>")),
    "llama3": Format((CallBlock("<|python_tag|>", "<|eom_id|>", read_json_or_python), *_BARE)),
    "minicpm": Format(
        (
            TagBlock(
                Opening('<function name="', ">", quote='"'),
                "</function>",
                Opening('<param name="', ">", quote='"'),
                "</param>",
            ),
        )
    ),
    "minicpm3": Format((_PYTHON,), thinking=("<|thought_start|>", "<|thought_end|>")),
    "minimax-m1": Format((_TOOL_CALLS,)),
    "minimax-m2": Format((_invokes("", "minimax:tool_call"),)),
    "minimax-m3": Format(
        (
            TagBlock(
                Opening(f'{_MINIMAX_M3_TAG}<invoke name="', ">", quote='"'),
                f"{_MINIMAX_M3_TAG}</invoke>",
                Opening(f"{_MINIMAX_M3_TAG}<", ">"),
                f"{_MINIMAX_M3_TAG}</{{}}>",
                (f"{_MINIMAX_M3_TAG}<tool_call>", f"{_MINIMAX_M3_TAG}</tool_call>"),
                nested=_MINIMAX_M3_TAG,
            ),
        ),
        thinking=("<mm:think>", "</mm:think>"),
    ),
    "ministral": _MISTRAL,
    "mistral": _MISTRAL,
    "nemotron": Format((CallBlock("<TOOLCALL>", "</TOOLCALL>", read_json),)),
    "nemotron-3-nano": _CODER,
    "nemotron-3.5-nano": _CODER,
    "olmo3": _OLMO3,
    "olmo3-think": replace(_OLMO3, thinks=True),
    "ornith": _CODER,
    "pangu": Format(
        (CallBlock("[unused11]", "[unused12]", read_json),),
        thinking=("[unused16]", "[unused17]"),
        special=True,
    ),
    "passthrough": Format(thinking=None, thinks=False),
    "phi4": Format(
        (
            CallBlock("<|tool_call|>", None, read_json, orphan="<|/tool_call|>"),
            CallBlock("functools[", None, read_json),
        )
    ),
    "plamo3": Format(
        (
            CallBlock(
                "<|plamo:begin_tool_request:plamo|>",
                "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
                read_named_json(
                    "<|plamo:msg|>", "<|plamo:begin_tool_name:plamo|>", "<|plamo:end_tool_name:plamo|>"
                ),
                before_json="<|plamo:msg|>",
            ),
        ),
        thinking=("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
        silent=("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
        special=True,
    ),
    "poolside-v1": _GLM,
    "qwen3": _HERMES,
    "qwen3-coder": replace(_CODER, thinks=False),
    "qwen3-thinking": _HERMES,
    "qwen3-vl-instruct": replace(_HERMES, thinks=False),
    "qwen3-vl-thinking": _HERMES,
    "qwen3.5": _CODER,
    "seed": Format(
        (replace(_FUNCTION_TAGS, block=("<seed:tool_call>", "</seed:tool_call>"), framing=""),),
        thinking=("<seed:think>", "</seed:think>"),
    ),
    "solar": Format(
        (
            CallBlock(
                "<|tool_call:begin|>",
                "<|tool_call:end|>",
                read_named_json("<|tool_call:args|>", "<|tool_call:name|>"),
            ),
        ),
        thinking=("<|think|>", "<|end|>"),
        silent=("<|begin|>assistant", "<|content|>", "<|end|>", "<|tool_calls|>", "<|calls|>"),
        special=True,
        answering="<|begin|>assistant<|content|>",
    ),
}

# Marks in the template's instructions, for templates that write no calls. More specific marks come first.
_SIGNS = {
    "<|channel|>": "harmony",
    "<|tool_call>": "gemma4",
    "<|tool_call|>": "granite",
    "<start_function_call>": "functiongemma",
    "<function=": "qwen3-coder",
    "<longcat_": "longcat",
    "plamo:begin_tool": "plamo3",
    "<|python_start|>": "llama4",
    "<|thought_start|>": "minicpm3",
    "<dots_function_call>": "dots",
    "<arg_key>": "glm-4.7",
    "<|observation|>": "glm-4",
    "<tool_call>": "hermes",
    "[TOOL_CALLS]": "mistral",
    "tool▁call▁begin": "deepseek3",
    "<|START_ACTION|>": "cohere",
    "<|START_RESPONSE|>": "cohere",
    "Action:": "command-r",
    "<|tool_list_start|>": "lfm2",
    "List of tools: [": "lfm2",
    "<|action_start|>": "internlm",
    "<|/tool|>": "phi4",
    "functools[": "firefunction",
    "<TOOLCALL>": "nemotron",
    "[unused9]": "pangu",
    "<function_calls>": "olmo3",
    "<|header_start|>": "llama4",
    "<|python_tag|>": "llama3",
    "ipython": "llama3",
    "tool_code": "gemma3",
    "</answer>": "hunyuan-a13b",
    "</response>": "ernie",
}
# For templates that show no format, or several: the format that models of the architecture were trained on.
ARCHITECTURES = {
    "gpt-oss": "harmony",
    "gptoss": "harmony",
    "gemma3": "gemma3",
    "chatglm": "glm-4",
    "glm4": "glm-4",
    "hunyuan-dense": "hunyuan-a13b",
    "hunyuan-moe": "hunyuan-a13b",
    "internlm2": "internlm",
    "lfm2": "lfm2",
    "lfm2moe": "lfm2",
    "llama": "llama3",
    "llama4": "llama4",
    "pangu-embedded": "pangu",
    "plamo3": "plamo3",
}
# Tags of thoughts that templates open or strip, for formats of calls that occur with several pairs of tags.
_THINKING_TAGS = (
    _THINK,
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<thought>", "</thought>"),
    ("<|thought_start|>", "<|thought_end|>"),
)


def choose_format(template: str, architecture: str = "") -> str:
    """Return the name of the format whose mark a template contains, else that of the architecture.

    It is for templates that write no calls; `choose_call_format` first examines what a template renders.
    """
    found = next((name for sign, name in _SIGNS.items() if sign in template), None)
    return found or ARCHITECTURES.get(architecture, "bare-json")


def parser_for(
    name: str,
    tools: Tools = (),
    prompt: str = "",
    thinking: bool = True,
    thinking_tags: tuple[str, str] | None = None,
    block: Block | None = None,
    thought: str = "",
) -> Parser:
    """Return a new parser for one answer, by the name of a format. Raises UnsupportedError for others.

    prompt: the text that the answer continues. If it has opened the thinking, the parser reads a thought
        regardless of `thinking`
    thought: the part of this thought that the prompt already contains
    tools: those of the request; without any, text that looks like a call is content
    thinking_tags, block: the tags that a template shows, for models that no format here describes
    """
    if (format := FORMATS.get(name)) is None:
        raise UnsupportedError(f"there is no parser {name!r}; use one of {', '.join(FORMATS)}")
    if format is _HARMONY:
        return HarmonyParser(tools, prompt)
    if format is _GLIMMER:
        return GlimmerParser(tools, prompt)
    if format is _FUNCTIONARY:
        return RecipientParser(tools, prompt)
    tags = thinking_tags or format.thinking
    opened = prompt.rstrip().removesuffix(thought.strip()).rstrip()
    is_thinking = tags is not None and opened.endswith(tags[0].strip())
    is_closed = tags is not None and opened.endswith(tags[1].strip())
    if not (thinking or is_thinking or format.special):
        tags = None
    blocks = format.blocks if tools else ()
    if tools and format.named:
        lines = (f"{name}{blank}\n" for name in sorted(names_of(tools)) for blank in ("", " "))
        blocks = (*blocks, *map(NamedCall, lines))
    if tools and block is not None:
        blocks = (block, *blocks)
    wrapping = format.wrapping if thinking_tags and (tags or is_closed) else ()
    return StreamParser(
        tags,
        blocks,
        (*format.silent, *wrapping),
        tools,
        is_thinking,
        skips_blanks=not thought,
        thinks_again=format.special,
    )


def may_end(name: str, token: str) -> bool:
    """Return whether a control token after an answer in a format ends its turn.

    A turn of some formats has several messages, and answers may contain the marks of their format.
    """
    format = FORMATS[name]
    blocks = (mark for block in format.blocks for mark in block.marks)
    marks = {*format.silent, *format.wrapping, *(format.thinking or ()), *blocks}
    return token not in marks and not any(format is each for each in (_HARMONY, _GLIMMER, _FUNCTIONARY))


def usual_end(name: str, lead: Lead) -> str:
    """Return the text between a thought and the answer of a format, where no template shows it.

    Most models that write `<think>` put blanks around the closing tag.
    """
    if lead.header or FORMATS[name].answering:
        return lead.closing + lead.header + FORMATS[name].answering
    return f"\n{lead.closing}\n\n" if lead.closing == _THINK[1] else lead.closing


def tags_in(template: str, name: str = "") -> tuple[str, str] | None:
    """Return the thinking tags that a template contains, else those that only the format `name` has.

    Returns None if there are neither.
    """
    found = next((tags for tags in _THINKING_TAGS if tags[1] in template), None)
    own = FORMATS[name].thinking if name else None
    return found or (None if own in _THINKING_TAGS else own)
