"""Writes the corpora of all targets from the tests' data, which takes a few seconds.

    python -m fuzz.make_corpus

Inputs that found a fault are called `found-...` and are kept.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import json as struct_json
from PIL import Image

import chaski
from chaski.chat.events import Text
from chaski.chat.requests import Chat
from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.image import as_video
from chaski.ml.sharded.frames import At, Frames
from chaski.ml.sharded.rounding import RoundedRows
from chaski.runner.channels.messages import Tokenize
from chaski.runner.channels.worker.agreement import Messages
from chaski.runner.channels.worker.codec import Cancel, Failure, Load, encode
from chaski.runner.prefix.block_files import FiledBlock, pieces
from fuzz.gguf_form import header_of
from fuzz.scratch import folder
from fuzz.target import CORPUS
from fuzz.targets.models import SEEING
from fuzz.targets.requests import BOUNDARY, MODEL
from fuzz.targets.states import blocks, state_file
from fuzz.targets.store import CHECKPOINT
from fuzz.targets.wires import pair
from tests import drafts
from tests.adapters import adapted_names, random_adapter
from tests.image.pictures import picture, png
from tests.server.test_hostile_values import BODIES
from tests.tiny_llama import TEMPLATE, write_tiny_llama
from tests.tiny_vision import DATA as VISION

_TESTS = Path(__file__).parents[1] / "tests"
_DATA = _TESTS / "data"
_MODELS = ("gemma3", "gpt-oss-mxfp4", "lfm2", "qwen35", "qwen3moe")
_PROJECTORS = (SEEING, "gemma3")

Inputs = Iterator[tuple[str, bytes]]
"""Names of inputs, and their content."""


def gguf() -> Inputs:
    path = folder() / "types.gguf"
    values: dict[str, Any] = {
        "a": np.uint8(1),
        "b": [1, -2],
        "c": ["x", "é"],
        "d": 0.5,
        "e": True,
        "f": np.zeros(3, np.float64),
    }
    rows = np.zeros((2, 256), np.float32)
    tensors: dict[str, Any] = {}
    for kind in (
        QuantType.F32,
        QuantType.F16,
        QuantType.Q4_0,
        QuantType.Q8_0,
        QuantType.Q4_K,
        QuantType.Q6_K,
    ):
        tensors[kind.name] = rows, kind
    write_gguf(path, {"general.architecture": "x", **values}, tensors)
    yield "types", header_of(path.read_bytes())
    write_gguf(path, {"general.alignment": 64, "k": "v"}, {"t": (rows, QuantType.F32)})
    yield "alignment", header_of(path.read_bytes())
    yield "empty", b"GGUF" + struct.pack("<IQQ", 3, 0, 0)


def safetensors() -> Inputs:
    entries = {
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
        "__metadata__": {"format": "pt"},
    }
    text = json.dumps(entries).encode()
    yield "two", struct.pack("<Q", len(text)) + text + bytes(22)


def model() -> Inputs:
    yield "llama", header_of(write_tiny_llama(folder() / "made.gguf").read_bytes())
    for name in _MODELS:
        yield name, header_of((_DATA / "architectures" / f"{name}.gguf").read_bytes())
    yield "embedder", header_of((_DATA / "embedders" / "nomic-bert.gguf").read_bytes())


def adapter() -> Inputs:
    with open_gguf(write_tiny_llama(folder() / "made.gguf")) as base:
        shapes = {name: base.tensors[name].shape for name in adapted_names(base, ("attn_q", "ffn_down"))}
    yield "two-modules", header_of(random_adapter(folder() / "adapter.gguf", shapes, 1, 4).read_bytes())


def projector() -> Inputs:
    for name in _PROJECTORS:
        yield name, header_of((VISION / f"{name}-mmproj.gguf").read_bytes())


def draft() -> Inputs:
    for name in ("qwen3", "eagle3"):
        path = folder() / "draft.gguf"
        convert(drafts.DRAFTS / name, path, "F32", target=drafts.TARGETS["qwen3"])
        yield name, header_of(path.read_bytes())


def tokenizer_json() -> Inputs:
    for name in ("llama3", "bert", "gemma3n", "t5encoder"):
        place = _DATA / "checkpoints" / name
        if (place / "tokenizer.json").exists():
            size = json.loads((place / "config.json").read_text()).get("vocab_size", 0)
            files = {"tokenizer": "tokenizer.json", "config": "tokenizer_config.json"}
            found = {key: json.loads((place / file).read_text()) for key, file in files.items()}
            yield name, _json({**found, "size": size})


def sentencepiece() -> Inputs:
    yield "gemma", (_DATA / "checkpoints" / "gemma" / "tokenizer.model").read_bytes()


def vocabulary() -> Inputs:
    path = folder() / "vocabulary.gguf"
    for name in ("llama", "gemma3"):
        source = write_tiny_llama(folder() / "made.gguf") if name == "llama" else VISION / f"{name}.gguf"
        with open_gguf(source) as file:
            kept = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
        write_gguf(path, kept, {})
        yield name, header_of(path.read_bytes())


def jinja() -> Inputs:
    yield "tiny", TEMPLATE.encode()
    yield "tools", _TOOLS_TEMPLATE.encode()
    yield "macro", _MACRO_TEMPLATE.encode()


def go() -> Inputs:
    recorded = json.loads((_DATA / "go_templates.json").read_text())
    for name in ("llama3", "mistral", "qwen", "harmony", "everything", "fill-turns"):
        yield name, recorded["families"][name].encode()
    sources = [source for source, wanted in recorded["language"][::25] if wanted is not None]
    yield "language", "\n".join(sources).encode()


def grammar() -> Inputs:
    yield "json", _JSON_GRAMMAR.encode()
    yield "recursion", b'root ::= "a" root "b" | item+ # why\nitem ::= ("- " [^\\n]+ "\\n")? .'
    yield "lark", b'start: "a" (b | /[a-z]+/)*\nb: %json {"type": "integer"}\nNAME: /\\w/\n%ignore / +/'


def regex() -> Inputs:
    yield "mail", rb"[a-z0-9._]+@(?:[a-z]+\.){1,3}(com|org)"
    yield "classes", rb"(?i)^\d{4}-\d\d(T[0-2]\d:[0-5]\d)?$|\p{Lu}[^\s\W]*?\.\u00e9|\x41+"


def schema() -> Inputs:
    properties = {
        "a": {"type": "integer", "minimum": 1, "maximum": 99, "multipleOf": 3},
        "b": {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1, "maxItems": 3},
        "c": {"enum": ["x", 1, None]},
        "d": {"type": "string", "pattern": "^[a-z]{1,3}$", "maxLength": 2},
        "e": {"type": "string", "format": "date-time"},
    }
    named = {"t": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/t"}, {"const": 1.5}]}}
    whole = {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}
    yield "object", _json({**whole, "$defs": named})
    kinds = {"kind": {"enum": ["n", "t"]}, "v": {"type": ["string", "integer"]}}
    choice = {
        "if": {"properties": {"kind": {"const": "n"}}},
        "then": {"properties": {"v": {"type": "integer", "exclusiveMinimum": -1}}},
        "else": {"properties": {"v": {"type": "string", "maxLength": 3}}},
    }
    yield "choice", _json({"type": "object", "properties": kinds, "required": ["kind", "v"], **choice})
    either = {"oneOf": [{"type": "integer"}, {"type": "null"}]}
    patterns = {"patternProperties": {"^x": {"type": "null"}}, "additionalProperties": either}
    yield "names", _json({"type": "object", **patterns, "minProperties": 1})


def http() -> Inputs:
    for path, body in BODIES.items():
        text = json.dumps(body).replace('"guide"', f'"{MODEL}"')
        method = "DELETE" if path == "/api/delete" else "POST"
        yield path.strip("/").replace("/", "-"), _request(method, path, json.loads(text))
    talk = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    form = {"response_format": {"type": "json_object"}}
    chat = {"model": MODEL, "messages": talk, "stream": True, "max_tokens": 4, **form}
    yield "stream", _request("POST", "/v1/chat/completions", chat)
    call = {"type": "tool_use", "id": "t1", "name": "get", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "7"}]}
    turns = [*talk, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    tools = [{"name": "get", "input_schema": {}}]
    message = {"model": MODEL, "max_tokens": 2, "messages": turns, "tools": tools}
    yield "tool", _request("POST", "/v1/messages", message, {"anthropic-beta": "x"})
    yield "page", _request("GET", "/v1/files?limit=2&order=asc", None)
    headers = {"origin": "http://localhost", "authorization": "Bearer x", "range": "bytes=0-", "cookie": "a"}
    yield "headers", _request("OPTIONS", "/api/chat", None, headers)


def _request(method: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> bytes:
    return _json({"method": method, "path": path, "headers": headers or {}, "body": body})


def multipart() -> Inputs:
    body = {"model": MODEL, "prompt": "a"}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    parts = {b'name="purpose"': b"batch", b'name="file"; filename="a.jsonl"': _json(line)}
    cut = b"--" + BOUNDARY
    content = b"".join(
        cut + b"\r\nContent-Disposition: form-data; " + name + b"\r\n\r\n" + text + b"\r\n"
        for name, text in parts.items()
    )
    yield "file", content + cut + b"--\r\n"


def modelfile() -> Inputs:
    yield "all", _MODELFILE.encode()


def manifest() -> Inputs:
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}", "size": 7}
    named = {**layer, "mediaType": "application/vnd.ollama.image.tensor", "name": "t", "from": "base"}
    yield "two-layers", _json({"schemaVersion": 2, "config": layer, "layers": [layer, named]})


def registry() -> Inputs:
    _, found = next(manifest())
    yield "manifest", _json([[200, {"content-type": "application/json"}, found.decode()]])
    part = {"path": "a/m-Q4_K_M-00001-of-00002.gguf", "lfs": {"oid": "b" * 64, "size": 10}}
    other = {**part, "path": "a/m-Q4_K_M-00002-of-00002.gguf"}
    files = [part, other, {"path": "mmproj-f16.gguf", "lfs": {"oid": "c" * 64, "size": 5}}]
    link = {"link": '<https://host.test/next>; rel="next"'}
    yield "pages", _json([[200, link, json.dumps(files[:1])], [200, {}, json.dumps(files[1:])]])
    challenge = {"www-authenticate": 'Bearer realm="https://host.test/token",service="s",scope="pull"'}
    yield "challenge", _json([[401, challenge, ""], [200, {}, '{"token": "t"}'], [200, {}, "{}"]])
    yield "refusal", _json([[400, {}, '{"errors": [{"message": "sharded"}]}'], [204, {"range": "0-9"}, ""]])


def batch() -> Inputs:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    yield "one", _json(line)
    yield "two", _json(line) + b"\n\n" + _json({**line, "custom_id": "b", "url": "/v1/embeddings"}) + b"\n"


def receipt() -> Inputs:
    path = write_tiny_llama(folder() / "made.gguf")
    with chaski.load(path, context=64, threads=1) as loaded:
        found = loaded.generate("Hi", num_predict=4, receipt=True).receipt
    assert found is not None
    yield "whole", found.text().encode()


def checkpoint() -> Inputs:
    yield "llama3", (CHECKPOINT / "config.json").read_bytes()


def worker() -> Inputs:
    question = Chat(({"role": "user", "content": "Hi"},), (), {"temperature": 0.5, "stop": ["x"]}, (b"GIF",))
    refusal = Failure("OptionError", "no")
    for message in (Load("m", {"context": 5}, 20), Cancel(), refusal, Tokenize("a"), Text("é"), question):
        yield type(message).__name__, encode(3, message)
    yield "json", encode(3, Text("\ud800"))


def shard_frames() -> Inputs:
    with pair() as (near, far):
        Frames(near).send({"a": [1, {"b": None}]}, [np.arange(6, dtype=np.float32).reshape(2, 3)])
        Frames(near).send({}, [np.zeros(0, np.uint8), np.ones(2, np.int32)])
        yield "two", far.recv(1 << 16)


def shard_values() -> Inputs:
    rows = np.linspace(-1, 1, 128, dtype=np.float32).reshape(4, 32)
    with pair() as (near, far):
        values = Frames(near).values()
        values.send(At(1, 2, 3), rows)
        values.send(At(1, 2, 4), RoundedRows.of(rows, 32))
        yield "floats-and-rounded", far.recv(1 << 16)


def link() -> Inputs:
    for name, text in (("own", struct_json.encode(Messages.own())), ("none", b"{}")):
        yield name, struct.pack("<I", len(text)) + text


def image() -> Inputs:
    whole = Image.fromarray(picture(9, 7))
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        yield kind.lower(), _saved(whole, kind)
    for mode in ("1", "P", "LA", "RGBA"):
        yield f"png-{mode}", _saved(whole.convert(mode), "PNG")
    yield "png-16", _saved(whole.convert("L").convert("I;16"), "PNG")


def video() -> Inputs:
    frames = [Image.fromarray(np.roll(picture(8, 8), 2 * index, 1)) for index in range(3)]
    for kind in ("GIF", "WEBP"):
        moving = _saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=100)
        yield kind.lower(), as_video([moving])
    yield "images", as_video([png(4, 4), png(4, 4)], 2.0)


def _saved(whole: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    whole.save(buffer, kind, **options)
    return buffer.getvalue()


def prefix_block() -> Inputs:
    yield "part", b"".join(pieces(blocks()[1]))


def block_name() -> Inputs:
    for number, block in enumerate(blocks()):
        yield f"{number}", FiledBlock.of(block).file_name.encode()


def state() -> Inputs:
    yield "two-blocks", state_file()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


_TOOLS_TEMPLATE = """{{- bos_token }}{%- if tools %}{{- '<tools>' }}{% for tool in tools %}
{{- tool | tojson(indent=2) }}{% endfor %}</tools>{% endif %}{% set ns = namespace(first=true) %}
{%- for message in messages -%}{%- if message.role == 'system' and loop.first %}
{{ message['content'] | trim }}{%- elif message.tool_calls is defined and message.tool_calls %}
{% for call in message.tool_calls %}{{ '<call>{"name": "' + call.function.name + '", "arguments": ' }}
{{ call.function.arguments | tojson }}}</call>{% endfor %}{%- else %}<|{{ message.role }}|>
{% if message.content is string %}{{ message.content.split('</think>')[-1] }}{% else %}
{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}<|end|>{% endif %}{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>{% endif %}{% endif %}"""
_MACRO_TEMPLATE = """{% macro part(x, n=1) %}{{ x ~ n }}{{ caller() if caller }}{% endmacro %}
{% for m in messages[1:] | list %}{% call part(m.role) %}{{ loop.index0 }}{% endcall %}
{{ m.content[::-1] | upper | replace('A', 'b') }}{{ '%s' % m.role }}
{% filter trim %} {{ strftime_now('%d') }}{% endfilter %}{% endfor %}
{% set x %}{{ messages | map(attribute='role') | join(',') }}{% endset %}{{ x | length }}
{% generation %}{{ raise_exception('no') if x == 'y' }}{% endgeneration %}"""
_JSON_GRAMMAR = r"""root ::= object
value ::= object | "[" ws (value ("," ws value)*)? "]" | string | "true" | [0-9]{1,3} ("." [0-9]+)?
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" ["\\bfnrt] | "\\u" [0-9a-fA-F]{4})* "\""
ws ::= | " " | "\n" [ \t]{0,20}"""
_MODELFILE = '''FROM ./model.gguf
# a comment
ADAPTER a.gguf
TEMPLATE """{{ .Prompt }}
"""
SYSTEM "Be short."
PARAMETER temperature 0.5
PARAMETER stop "<|end|>"
PARAMETER stop x
LICENSE """MIT

free"""
MESSAGE user Hi
MESSAGE assistant """Hello, "you""""
REQUIRES 0.14.0
parser qwen3
RENDERER qwen3
'''

_MAKERS = (
    *(
        gguf,
        safetensors,
        model,
        adapter,
        projector,
        draft,
        tokenizer_json,
        sentencepiece,
        vocabulary,
        jinja,
        go,
    ),
    *(grammar, regex, schema, http, multipart, modelfile, manifest, registry, batch, receipt, checkpoint),
    *(worker, shard_frames, shard_values, link, image, video, prefix_block, block_name, state),
)
MAKERS: Mapping[str, Callable[[], Inputs]] = {maker.__name__.replace("_", "-"): maker for maker in _MAKERS}


def main() -> None:
    """Write all corpora, and print their sizes."""
    total = 0
    for name, maker in MAKERS.items():
        place = CORPUS / name
        place.mkdir(parents=True, exist_ok=True)
        for path in place.iterdir():
            if not path.name.startswith("found-"):
                path.unlink()
        for title, content in maker():
            (place / title).write_bytes(content)
        size = sum(path.stat().st_size for path in place.iterdir())
        total += size
        print(f"{name:16} {len(list(place.iterdir())):3} inputs {size:8,} bytes")
    print(f"{total:,} bytes")


if __name__ == "__main__":
    main()
