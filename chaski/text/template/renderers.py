"""Templates for names under which Ollama stores a way of writing conversations, its renderers.

They stand in where a model names one and its file brings no template. Source: what models write and read in
the tests of Ollama's renderers, and their makers' descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["RENDERERS"]

_LFM2_TOOLS = """\
{%- set system = messages[0].content if messages and messages[0].role == "system" else "" -%}
{%- set turns = messages[1:] if system else messages -%}
{%- if tools -%}
  {%- set listed -%}
    List of tools: <|tool_list_start|>[
    {%- for tool in tools -%}
      {{ tool.function | tojson }}{{ ", " if not loop.last }}
    {%- endfor -%}
    ]<|tool_list_end|>
  {%- endset -%}
  {%- set system = system ~ ("\\n" if system else "") ~ listed -%}
{%- endif -%}
"""
_LFM2_CALLS = """\
{%- macro calls(found) -%}
  <|tool_call_start|>[
  {%- for call in found -%}
    {{ call.function.name }}(
    {%- for name, value in call.function.arguments.items() -%}
      {{ name }}={{ value | tojson }}{{ ", " if not loop.last }}
    {%- endfor -%}
    ){{ ", " if not loop.last }}
  {%- endfor -%}
  ]<|tool_call_end|>
{%- endmacro -%}
"""
_LFM2_TURNS = """\
{{- bos_token -}}
{%- if system -%}{{ "<|im_start|>system\\n" ~ system ~ "<|im_end|>\\n" }}{%- endif -%}
{%- for message in turns -%}
  {%- set text = message.content -%}
FORGETTING
  {{- "<|im_start|>" ~ message.role ~ "\\n" -}}
  {%- if message.role == "tool" -%}
    {{ "<|tool_response_start|>" ~ text ~ "<|tool_response_end|>" }}
  {%- else -%}
    {{ text }}{{ calls(message.tool_calls) if message.tool_calls }}
  {%- endif -%}
  {%- if not (loop.last and message.role == "assistant") -%}{{ "<|im_end|>\\n" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not (turns and turns[-1].role == "assistant") -%}
  {{ "<|im_start|>assistant\\n" }}
{%- endif -%}
"""


_LFM2_FORGETTING = """\
  {%- if message.role == "assistant" and not loop.last and not enable_thinking -%}
    {%- set text = text.split("</think>")[-1] -%}
  {%- endif -%}"""


def _lfm2(forgetting: str = "") -> str:
    """forgetting: what is left out of earlier turns."""
    return _LFM2_TOOLS + _LFM2_CALLS + _LFM2_TURNS.replace("FORGETTING", forgetting)


RENDERERS: Mapping[str, str] = {"lfm2": _lfm2(), "lfm2-thinking": _lfm2(_LFM2_FORGETTING)}
"""Jinja, by name."""
