"""The table of stored models that `test_stored_models` uses in every way, and their answers.

Every way gives a model the same prompt and reads the same answer, with these exceptions:

* `chaski run` has no tools and no tool results, so calls remain text.
* Anthropic's API lets a model think only if a request enables it; all others unless it disables it.
* Only /api/generate and /v1/completions accept a suffix; conversations have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chaski.text.parsers.formats import FORMATS
from chaski.text.template.renderers import RENDERERS

GO = "{{ range .Messages }}[{{ .Role }}] {{ .Content }}\n{{ end }}[assistant] "
GO_OF_ONE_TURN = "{{ .System }}|{{ .Prompt }}|{{ .Response }}"
GO_WITH_TOOLS = (
    "{{ range .Tools }}{{ .Function.Name }};{{ end }}{{ range .Messages }}[{{ .Role }}] "
    "{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }}"
    "{{ range .ToolCalls }}<call>{{ .Function.Name }} {{ .Function.Arguments }}{{ end }}\n{{ end }}"
    "[assistant] {{ if and .IsThinkSet (not .Think) }}<think></think>{{ end }}"
)
GO_INSERT = "{{ if .Suffix }}<pre>{{ .Prompt }}<suf>{{ .Suffix }}<mid>{{ else }}" + GO + "{{ end }}"
JINJA = (
    "{{ bos_token }}{% if tools %}<|tools|>{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls %}<call>{{ call.id }}{{ call.function | tojson }}{{ call.type }}{% endfor %}"
    "{{ m.name }}{{ m.tool_call_id }}\n{% endfor %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% if reasoning_effort is defined %}<|{{ reasoning_effort }}|>{% endif %}"
)
FILLED = "<pre>before<suf>after<mid>"


@dataclass(frozen=True)
class Case:
    """A stored model.

    file    "plain" and "jinja" are tiny Llamas without and with a template; the others have vision
    hello the prompt for "hi", if the table states it
    inserts whether it supports infilling
    layers  layers that are stored next to the file
    """

    name: str
    file: str = "plain"
    hello: str | None = None
    tools: bool = False
    thinks: bool = False
    inserts: bool = False
    layers: Mapping[str, Any] | None = None

    @property
    def has_vision(self) -> bool:
        return self.file in ("gemma3", "mistral3")

    @property
    def always_thinks(self) -> bool:
        """Return whether its template opens a thought even if a request disables thinking."""
        return self.parser == "olmo3-think"

    @property
    def parser(self) -> str:
        """Return the format of its answers: the renderer's, the template's, or that of Llama or Gemma 3."""
        if renderer := RENDERERS.get((self.layers or {}).get("renderer", "")):
            return renderer.parser
        if (self.layers or {}).get("template") is GO_WITH_TOOLS:
            return "<call>"  # the template's own tag
        return "gemma3" if self.file == "gemma3" else "llama3"


OPENING = {
    "system": "be brief",
    "messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}],
}
HI_GO, HI_JINJA = "[user] hi\n[assistant] ", "<|user|>hi\n<|assistant|>"
LATER = {"renderer": "later", "template": GO}
QWEN = {"renderer": "qwen3.5", "parser": "qwen3.5", "template": GO}
CASES = [
    Case("nothing", hello="hi"),
    Case("go", hello=HI_GO, layers={"template": GO}),
    Case("go-of-one-turn", hello="|hi|", layers={"template": GO_OF_ONE_TURN}),
    Case("go-tools", tools=True, thinks=True, layers={"template": GO_WITH_TOOLS}),
    Case("go-insert", hello=HI_GO, inserts=True, layers={"template": GO_INSERT}),
    Case("jinja", "jinja", HI_JINJA, True, True),
    Case("go-beside-jinja", "jinja", HI_JINJA, True, True, layers={"template": GO}),
    Case("go-tools-beside-jinja", "jinja", HI_GO, True, True, layers={"template": GO_WITH_TOOLS}),
    Case("go-insert-beside-jinja", "jinja", HI_JINJA, True, True, True, {"template": GO_INSERT}),
    Case("renderer", "jinja", None, True, True, layers=QWEN),
    Case("renderer-alone", "plain", None, True, False, layers={"renderer": "qwen3-vl-instruct"}),
    Case("unknown-renderer", "jinja", HI_JINJA, True, True, layers=LATER),
    Case(
        "opening-go",
        hello="[system] be brief\n[user] 1\n[assistant] 2\n[user] hi\n[assistant] ",
        layers={"template": GO} | OPENING,
    ),
    Case(
        "opening-jinja",
        "jinja",
        "<|system|>be brief\n<|user|>1\n<|assistant|>2\n<|user|>hi\n<|assistant|>",
        True,
        True,
        layers=OPENING,
    ),
    Case("opening-both", "jinja", None, True, True, layers={"template": GO} | OPENING),
    Case("vision-gemma3", "gemma3", "<user>hi\n"),
    Case("vision-mistral3", "mistral3", "[INST]hi[/INST]"),
    Case("vision-go", "gemma3", HI_GO, layers={"template": GO}),
    Case("vision-go-of-one-turn", "mistral3", "|hi|", layers={"template": GO_OF_ONE_TURN}),
]
# The name of each renderer in stored models, with its parser.
CASES += [
    Case(
        f"named-{name}",
        tools="tools" in renderer.source,
        thinks=FORMATS[renderer.parser].thinks,
        layers={"renderer": name, "parser": renderer.parser},
    )
    for name, renderer in RENDERERS.items()
]

_THOUGHT = "<think>I wonder</think>"
_HERMES = (_THOUGHT, "Fine.", '<tool_call>{"name": "clock", "arguments": {"at": 1}}</tool_call>')
_CODER = (
    _THOUGHT,
    "Fine.",
    "<tool_call>\n<function=clock>\n<parameter=at>\n1\n</parameter>\n</function>\n</tool_call>",
)
_DEEPSEEK = (
    _THOUGHT,
    "Fine.",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>"
    '{"at": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
)
_GLM = (
    _THOUGHT,
    "Fine.",
    "<tool_call>clock\n<arg_key>at</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
)
_GEMMA4 = ("<|channel>thought\nI wonder<channel|>", "Fine.", "<|tool_call>call:clock{at:1}<tool_call|>")
_LFM2 = (_THOUGHT, "Fine.", "<|tool_call_start|>[clock(at=1)]<|tool_call_end|>")
_OLMO3 = (_THOUGHT, "Fine.", "<function_calls>clock(at=1)</function_calls>")
ANSWERS: Mapping[str, tuple[str, str, str]] = {
    "cogito": _DEEPSEEK,
    "cohere": (
        "<|START_THINKING|>I wonder<|END_THINKING|>",
        "<|START_RESPONSE|>Fine.<|END_RESPONSE|>",
        '<|START_ACTION|>[{"tool_name": "clock", "parameters": {"at": 1}}]<|END_ACTION|>',
    ),
    "deepseek3": _DEEPSEEK,
    "functiongemma": ("", "Fine.", "<start_function_call>call:clock{at:1}<end_function_call>"),
    "gemma3": ("", "Fine.", "```tool_code\nclock(at=1)\n```"),
    "gemma4": _GEMMA4,
    "gemma4-no-thinking": _GEMMA4,
    "glimmer": (
        " to=self<|message|>I wonder<|eom|><|start|>assistant",
        " to=user<|message|>Fine.<|eom|><|start|>assistant",
        ' to=clock<|message|><atem:function_calls><atem:invoke name="clock"><atem:parameter name="at">1'
        "</atem:parameter></atem:invoke></atem:function_calls><|eot|>",
    ),
    "glm-4.7": _GLM,
    "glm-ocr": _GLM,
    "harmony": (
        "<|channel|>analysis<|message|>I wonder<|end|><|start|>assistant",
        "<|channel|>final<|message|>Fine.<|end|><|start|>assistant",
        '<|channel|>commentary to=functions.clock<|message|>{"at": 1}<|call|>',
    ),
    "laguna": _GLM,
    "lfm2": _LFM2,
    "lfm2-thinking": _LFM2,
    "<call>": (_THOUGHT, "Fine.", '<call>clock {"at": 1}'),
    "llama3": (_THOUGHT, "Fine.", '<|python_tag|>{"name": "clock", "parameters": {"at": 1}}<|eom_id|>'),
    "nemotron-3-nano": _CODER,
    "nemotron-3.5-nano": _CODER,
    "olmo3": _OLMO3,
    "olmo3-think": _OLMO3,
    "ornith": _CODER,
    "poolside-v1": _GLM,
    "qwen3-coder": _CODER,
    "qwen3-vl-instruct": _HERMES,
    "qwen3-vl-thinking": _HERMES,
    "qwen3.5": _CODER,
}
"""By format, a model's text for the thought "I wonder", the text "Fine." and the call clock(at=1)."""
