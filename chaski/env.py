"""The environment variables that chaski reads: one table, parsed in one place.

`Environment.read()` parses all of them and refuses a bad value. Names that Ollama knows keep its name and
meaning. Arguments and options always win over the environment.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from chaski.durations import parse_duration
from chaski.errors import OptionError
from chaski.names import AUTO, ENGINES

__all__ = ["Environment", "Variable", "child_environment", "variables", "without_secrets"]

_LONGEST_WAIT = 86400.0
# OpenTelemetry reads these itself. They may contain a key of the collector.
_SECRETS_OF_OTHERS = {"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"}


@dataclass(frozen=True, slots=True)
class Variable:
    """A row of the table. `default` is text for people; `parse` raises ValueError with what is allowed."""

    name: str
    kind: str
    default: str
    meaning: str
    parse: Callable[[str], Any]


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("a whole number above 0")
    return number


def _word(text: str) -> str:
    return text.lower()


def _variants(text: str) -> str:
    name, colon, seed = text.partition(":")
    if name in ("measured", "first") and not colon:
        return text
    if name == "random" and seed.isdecimal() and len(seed) < 10:
        return text
    raise ValueError("measured, first, or random:SEED with a whole number")


def _engine(text: str) -> str:
    if text not in ENGINES:
        raise ValueError("native or llama.cpp")
    return text


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise ValueError("1 or 0, true or false")
    return words[text.lower()]


def _is_true(text: str) -> bool:
    """A switch as OpenTelemetry defines it, where all other words are off."""
    return text.lower() == "true"


def _debug(text: str) -> bool:
    """A switch. The reference has a second level too, which says more of the same."""
    return text == "2" or _switch(text)


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ValueError("a whole number of at least 0")
    return int(text)


def _range(text: str) -> tuple[int, int]:
    """A number of at least 1, or two with a dash between them."""
    least, dash, most = text.partition("-")
    found = _count(least.strip()), _count((most if dash else least).strip())
    if not 1 <= found[0] <= found[1]:
        raise ValueError("a number of at least 1, or a range such as 1-4")
    return found


def _gpus(text: str) -> float:
    """GPUs as Ray takes them: whole ones, or a part of one."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (0 <= number <= 1 or (1 < number < math.inf and number.is_integer())):
        raise ValueError("a whole number of GPUs, or a part of one, such as 0.5")
    return number


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _size(text: str) -> int:
    """A number of bytes, with a decimal unit or without."""
    number = text.strip().upper().removesuffix("B").strip()
    unit = number[-1:] if number[-1:].isalpha() else ""
    digits = number.removesuffix(unit).strip()
    if unit not in _UNITS or not digits.isdecimal() or len(digits) > 15:
        raise ValueError("a size such as 500MB, 4GB, or a number of bytes")
    return int(digits) * _UNITS[unit]


def _shares(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not all(0 <= share < math.inf for share in found) or not any(found):
        raise ValueError("numbers of at least 0, one for each GPU, such as 3,1")
    return found


def _prefix_cache(text: str) -> str:
    if text.lower() not in ("on", "memory", "off"):
        raise ValueError("on, memory or off")
    return text.lower()


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except OptionError:
        raise ValueError("a duration such as 90s, 5m or 1h30m, or a number of seconds") from None


def _waiting_seconds(text: str) -> float:
    seconds = _seconds(text)
    if not 0 < seconds <= _LONGEST_WAIT:
        raise ValueError("a duration above 0 and up to a day")
    return seconds


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the keys of this server, for processes that have no use for them."""
    secret = {variable.name for variable in variables() if variable.parse is _secrets}
    return {name: value for name, value in environment.items() if name not in secret | _SECRETS_OF_OTHERS}


def child_environment() -> dict[str, str]:
    """Return the environment of a process that runs a module of ours, without keys that it has no use for.

    It looks for modules where this process does.
    """
    return without_secrets(os.environ) | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


def _secrets(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip().lower() for word in text.split(",") if word.strip())


def _nodes(text: str) -> tuple[tuple[str, int, float | None], ...]:
    """Hosts, ports and shares."""
    found = tuple(_node(word.strip()) for word in text.split(",") if word.strip())
    if len({share is None for _, _, share in found}) > 1:
        raise ValueError("addresses that all have a share, host:port=SHARE, or none")
    return found


_NODE = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:=\[\]]+):(?P<port>\d{1,5})(=(?P<share>\d+(\.\d+)?))?")


def _node(text: str) -> tuple[str, int, float | None]:
    node = _NODE.fullmatch(text)
    if node is None or not 0 < int(node["port"]) < 1 << 16 or (node["share"] and not float(node["share"])):
        raise ValueError("addresses such as 10.0.0.1:11500,10.0.0.2:11500, or with shares, 10.0.0.1:11500=2")
    return node["host"].strip("[]"), int(node["port"]), float(node["share"]) if node["share"] else None


def _split(text: str) -> str:
    if text.lower() not in ("layers", "rows"):
        raise ValueError("layers or rows")
    return text.lower()


_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?")


def _exact_origins(text: str) -> tuple[str, ...]:
    """Origins as they stand in a Content-Security-Policy, which knows no IPv6 addresses."""
    found = _words(text)
    if not all(_ORIGIN.fullmatch(origin) for origin in found):
        raise ValueError(
            "origins such as http://localhost:8000, separated by commas: scheme, host name and port, "
            "without a path, * or an IPv6 address"
        )
    return found


def _variable(
    name: str, kind: str, meaning: str, parse: Callable[[str], Any], default: Any = None, unset: str = ""
) -> Any:
    row = Variable(name, kind, unset or str(default), meaning, parse)
    return field(default=default, metadata={"variable": row})


@dataclass(frozen=True, slots=True)
class Environment:
    """The parsed values; the default where a variable is not set, or empty."""

    context: int | None = _variable(
        "OLLAMA_CONTEXT_LENGTH",
        "number",
        "tokens that one sequence may hold, its prompt included; never more than the model was made for",
        _positive,
        unset="the model's own, at most 4096",
    )
    parallel: int | None = _variable(
        "OLLAMA_NUM_PARALLEL",
        "number",
        "sequences that are computed at the same time, each with a context of its own",
        _positive,
        unset="1, or for a model whose tokens all see each other as many as fit into 2,048 tokens; "
        "in the server 4, where the memory is enough",
    )
    kv_type: str | None = _variable(
        "OLLAMA_KV_CACHE_TYPE",
        "type",
        "element type of keys and values: f32, f16, bf16, i16, q8_0 or q4_0, or two of them as keys:values",
        _word,
        unset="i16; f32 for a model of f32 weights",
    )
    multi_user: bool | None = _variable(
        "OLLAMA_MULTIUSER_CACHE",
        "switch",
        "on: a prompt never drops what another one has cached while a slot is free; off: it always goes on "
        "in the slot that shares most with it",
        _switch,
        unset="it goes on there if it drops fewer tokens than it takes over",
    )
    flash_attention: bool = _variable(
        "OLLAMA_FLASH_ATTENTION",
        "switch",
        "off: attention computes all scores of a token before it weighs values; not with q8_0 and q4_0",
        _switch,
        default=True,
        unset="on",
    )
    threads: int | None = _variable(
        "CHASKI_THREADS",
        "number",
        "number of cores to compute on",
        _positive,
        unset="the physical cores that affinity and CPU quotas leave",
    )
    isa: str = _variable(
        "CHASKI_ISA",
        "name",
        "instruction set of the kernels: one of those that `chaski info` lists",
        _word,
        default="auto",
        unset="the fastest",
    )
    backend: str = _variable(
        "CHASKI_BACKEND",
        "name",
        "what computes models: auto (an NVIDIA GPU where there is one, else the processor), cpu, cuda, "
        "reference (NumPy), or sharded (the nodes of CHASKI_NODES together)",
        _word,
        default=AUTO,
        unset="auto; sharded where CHASKI_NODES is set",
    )
    num_gpu: int | None = _variable(
        "CHASKI_NUM_GPU",
        "number",
        "how many of the last layers of a model are on GPUs, the output being one more; 0: none",
        _count,
        unset="as many as fit",
    )
    main_gpu: int | None = _variable(
        "CHASKI_MAIN_GPU",
        "number",
        "the GPU of a model that one GPU has room for",
        _count,
        unset="the one with the most free memory",
    )
    tensor_split: tuple[float, ...] = _variable(
        "CHASKI_TENSOR_SPLIT",
        "shares",
        "how much of a model each GPU takes, such as 3,1",
        _shares,
        default=(),
        unset="as much as its free memory allows",
    )
    sched_spread: bool = _variable(
        "OLLAMA_SCHED_SPREAD",
        "switch",
        "on: all GPUs share a model, also where one has room for it",
        _switch,
        default=False,
        unset="off",
    )
    gpu_overhead: int = _variable(
        "OLLAMA_GPU_OVERHEAD",
        "number",
        "bytes of each GPU that stay free",
        _size,
        default=0,
    )
    nodes: tuple[tuple[str, int, float | None], ...] = _variable(
        "CHASKI_NODES",
        "addresses",
        "the nodes that compute each model together, host:port of each `chaski shard`, separated by commas; "
        "host:port=2 takes twice the layers of host:port=1",
        _nodes,
        default=(),
        unset="none, this machine computes",
    )
    split: str = _variable(
        "CHASKI_SPLIT",
        "word",
        "how the nodes, or several GPUs, share a model: layers, each a run of them, or rows of every matrix",
        _split,
        default="layers",
    )
    nodes_key: str | None = _variable(
        "CHASKI_NODES_KEY",
        "path",
        "the file with the key that all nodes know, 32 random characters or more",
        str,
        unset="none",
    )
    variants: str = _variable(
        "CHASKI_VARIANTS",
        "name",
        "variants of the kernels, which all give the same bits: measured (what this machine measured to be "
        "the fastest, as `chaski info` lists it), first (as they come), or random:SEED, for tests",
        _variants,
        default="measured",
    )

    engine: str | None = _variable(
        "CHASKI_ENGINE",
        "name",
        "engine of all models that do not name one themselves: native or llama.cpp",
        _engine,
        unset="native for its architectures; llama.cpp for others, where it is installed",
    )

    prefix_cache: str = _variable(
        "CHASKI_PREFIX_CACHE",
        "word",
        "where beginnings of prompts are kept beyond the sequences that are computed: on (memory and disk), "
        "memory, or off",
        _prefix_cache,
        default="on",
    )
    prefix_cache_memory: int | None = _variable(
        "CHASKI_PREFIX_CACHE_MEMORY",
        "size",
        "memory that the prefix cache of a model may take, such as 4GB",
        _size,
        unset="an eighth of what is free when the model is loaded",
    )
    prefix_cache_disk: int | None = _variable(
        "CHASKI_PREFIX_CACHE_DISK",
        "size",
        "disk space that the prefix cache of all models may take; 0 for none",
        _size,
        unset="10GB, or a tenth of what is free",
    )
    prefix_cache_writes: int | None = _variable(
        "CHASKI_PREFIX_CACHE_WRITES",
        "size",
        "bytes that the prefix cache may write to disk in a day (UTC)",
        _size,
        unset="50GB",
    )
    answers: bool = _variable(
        "CHASKI_ANSWERS",
        "switch",
        "off: a model whose file brings answers, as the guide's does, writes what it likes",
        _switch,
        default=True,
        unset="on",
    )

    models: str | None = _variable(
        "OLLAMA_MODELS",
        "folder",
        "the model store: manifests and blobs, as Ollama lays them out",
        str,
        unset="~/.ollama/models",
    )
    keeps_unused: bool = _variable(
        "OLLAMA_NOPRUNE",
        "switch",
        "on: blobs that a pull, a create or a removal leaves unused are kept",
        _switch,
        default=False,
        unset="off",
    )
    private_registries: tuple[str, ...] = _variable(
        "CHASKI_PRIVATE_REGISTRIES",
        "hosts",
        "registry hosts that may have private or loopback addresses, separated by commas",
        _words,
        default=(),
        unset="none",
    )

    host: str | None = _variable(
        "OLLAMA_HOST",
        "address",
        "where the server listens, and where commands look for it: host, host:port or a URL; if set, "
        "commands on models ask that server instead of the store here",
        str,
        unset="127.0.0.1:11434",
    )
    origins: tuple[str, ...] = _variable(
        "OLLAMA_ORIGINS",
        "origins",
        "origins of web pages that may use the server, separated by commas; * stands for any text",
        _words,
        default=(),
        unset="those of this machine",
    )
    allowed_hosts: tuple[str, ...] = _variable(
        "CHASKI_ALLOWED_HOSTS",
        "hosts",
        "further host names by which clients may call the server, separated by commas",
        _words,
        default=(),
        unset="names and addresses of this machine and of private networks",
    )
    api_keys: tuple[str, ...] = _variable(
        "CHASKI_API_KEYS",
        "keys",
        "API keys, separated by commas; each request needs one of them",
        _secrets,
        default=(),
        unset="no key is needed",
    )
    admin_keys: tuple[str, ...] = _variable(
        "CHASKI_ADMIN_KEYS",
        "keys",
        "API keys that also allow pulling, pushing, creating, copying and deleting models",
        _secrets,
        default=(),
        unset="with API keys nobody may, without them everybody",
    )
    adapters: str | None = _variable(
        "CHASKI_ADAPTERS",
        "path",
        "the folder from which the server loads LoRA adapters at /v1/load_lora_adapter",
        str,
        unset="none, so that no adapter is loaded by its path",
    )
    adapters_memory: int | None = _variable(
        "CHASKI_ADAPTERS_MEMORY",
        "size",
        "memory that the LoRA adapters of a model may take together, such as 2GB; the one that was not used "
        "for the longest time goes first",
        _size,
        unset="a quarter of what is free when the first one is loaded",
    )
    states: str | None = _variable(
        "CHASKI_STATES",
        "path",
        "the folder where the server keeps what llama.cpp's /slots saves",
        str,
        unset="none, so that nothing is saved",
    )
    states_size: int | None = _variable(
        "CHASKI_STATES_SIZE",
        "size",
        "disk space that the files of that folder may take together; a state that has no room is refused",
        _size,
        unset="10GB",
    )
    files: int | None = _variable(
        "CHASKI_FILES",
        "size",
        "disk space that files of /v1/files may take in the store, results included; 0 for none",
        _size,
        unset="2GB",
    )
    mcp_servers: tuple[str, ...] = _variable(
        "CHASKI_MCP_SERVERS",
        "origins",
        "origins of MCP servers that the page may reach from the browser, separated by commas, such as "
        "http://localhost:8000",
        _exact_origins,
        default=(),
        unset="none",
    )
    is_open: bool = _variable(
        "CHASKI_OPEN",
        "switch",
        "on: the server listens on other addresses than loopback even without any key",
        _switch,
        default=False,
        unset="off",
    )
    api_key: str | None = _variable(
        "OLLAMA_API_KEY", "key", "the key that commands send to the server", str, unset="none"
    )
    no_history: bool = _variable(
        "OLLAMA_NOHISTORY",
        "switch",
        "on: lines that are typed in chats are not kept in ~/.ollama/history",
        _switch,
        default=False,
        unset="off",
    )
    cluster: str | None = _variable(
        "CHASKI_CLUSTER",
        "address",
        "the cluster of Ray whose machines compute the models of the server; local starts one here",
        str,
        unset="none, this machine computes",
    )
    replicas: tuple[int, int] = _variable(
        "CHASKI_REPLICAS",
        "number",
        "how many replicas a model has in a cluster; a range such as 1-4 follows the load",
        _range,
        (1, 1),
        unset="1",
    )
    shards: tuple[int, int] = _variable(
        "CHASKI_SHARDS",
        "number",
        "how many nodes of a cluster compute each replica together; with a range such as 1-4 as few of them "
        "as have the memory",
        _range,
        (1, 1),
        unset="1",
    )
    gpus: float | None = _variable(
        "CHASKI_GPUS",
        "number",
        "GPUs of each replica in a cluster, or of each of its nodes; 0.5: two replicas share one",
        _gpus,
        unset="1 where the cluster has any, and a replica would use them",
    )
    access_log: str | None = _variable(
        "CHASKI_ACCESS_LOG",
        "path",
        "the file to which the server adds a line of JSON for each request; - is standard error",
        str,
        unset="none",
    )
    otlp_traces_endpoint: str | None = _variable(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "URL",
        "where the server sends spans of requests, such as http://localhost:4318/v1/traces",
        str,
        unset="none",
    )
    otlp_endpoint: str | None = _variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "URL",
        "the same without /v1/traces, which is added",
        str,
        unset="none",
    )
    otlp_traces_protocol: str | None = _variable(
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        "name",
        "how spans are sent: only http/protobuf is known",
        _word,
        unset="OTEL_EXPORTER_OTLP_PROTOCOL",
    )
    otlp_protocol: str | None = _variable(
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "name",
        "the same, for all that OpenTelemetry sends",
        _word,
        unset="http/protobuf",
    )
    otel_traces_exporter: str | None = _variable(
        "OTEL_TRACES_EXPORTER",
        "name",
        "otlp, or none for no spans",
        _word,
        unset="otlp, where there is a URL",
    )
    is_otel_disabled: bool = _variable(
        "OTEL_SDK_DISABLED",
        "switch",
        "true: no spans are made or sent",
        _is_true,
        default=False,
        unset="false",
    )
    debug: bool = _variable(
        "OLLAMA_DEBUG",
        "switch",
        "on, or 2: the server logs requests, and what is loaded and unloaded, as with --verbose",
        _debug,
        default=False,
        unset="off",
    )
    editor: str | None = _variable(
        "OLLAMA_EDITOR",
        "command",
        "the editor that Ctrl-X Ctrl-E opens for a message in a chat",
        str,
        unset="VISUAL, EDITOR, or one that is installed",
    )
    keep_alive: float = _variable(
        "OLLAMA_KEEP_ALIVE",
        "duration",
        "how long the server keeps a model after its last request; 0 not at all, below 0 for ever",
        _seconds,
        default=300.0,
        unset="5m",
    )
    load_timeout: float = _variable(
        "OLLAMA_LOAD_TIMEOUT",
        "duration",
        "how long loading may go without progress before the server gives it up; 0 and below for ever",
        _seconds,
        default=300.0,
        unset="5m",
    )
    max_loaded: int = _variable(
        "OLLAMA_MAX_LOADED_MODELS",
        "number",
        "models that the server keeps in memory at most; 0 means 3",
        _count,
        default=0,
    )
    header_timeout: float = _variable(
        "CHASKI_HEADER_TIMEOUT",
        "duration",
        "how long a client may take to send the headers of a request",
        _waiting_seconds,
        default=10.0,
        unset="10s",
    )
    body_timeout: float = _variable(
        "CHASKI_BODY_TIMEOUT",
        "duration",
        "how long the next piece of a request or of an upload may take",
        _waiting_seconds,
        default=30.0,
        unset="30s",
    )
    read_timeout: float = _variable(
        "CHASKI_READ_TIMEOUT",
        "duration",
        "how long a client may read nothing of an answer that waits for it",
        _waiting_seconds,
        default=300.0,
        unset="5m",
    )
    body_memory: int = _variable(
        "CHASKI_BODY_MEMORY",
        "number",
        "MiB that large requests may take together while they are answered; more of them wait, then get 503",
        _positive,
        default=1024,
    )
    max_connections: int | None = _variable(
        "CHASKI_MAX_CONNECTIONS",
        "number",
        "connections that the server keeps; for one more the idlest or slowest is closed, or it gets 503",
        _positive,
        unset="what the limit of open files leaves",
    )
    max_queue: int = _variable(
        "OLLAMA_MAX_QUEUE",
        "number",
        "requests that may wait for a model; more are refused with 503",
        _positive,
        default=512,
    )

    @classmethod
    def read(cls, values: Mapping[str, str] = os.environ) -> Environment:
        """Parse every variable of the table. Raises OptionError that says what a variable may be."""
        found = {}
        for attribute in fields(cls):
            variable: Variable = attribute.metadata["variable"]
            # Service files and .env files often leave the quotes in the value.
            text = values.get(variable.name, "").strip().strip("\"'").strip()
            if text:
                found[attribute.name] = _parse(variable, text)
        if found.get("nodes"):
            found.setdefault("backend", "sharded")
        return cls(**found)


def variables() -> list[Variable]:
    """The table, in the order in which it is written above."""
    return [attribute.metadata["variable"] for attribute in fields(Environment)]


def _parse(variable: Variable, text: str) -> Any:
    try:
        return variable.parse(text)
    except ValueError as allowed:
        raise OptionError(f"environment variable {variable.name} = {text!r} must be {allowed}") from None
