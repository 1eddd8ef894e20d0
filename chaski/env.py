"""The environment variables of chaski: one table and its parser.

`Environment.read()` parses all variables and rejects invalid values. Variables of Ollama keep their names and
meanings. Arguments and options override the environment.
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

__all__ = ["Environment", "Variable", "child_environment", "parse_size", "variables", "without_secrets"]

_LONGEST_WAIT = 86400.0
# OpenTelemetry reads these variables itself. They may contain a key for the collector.
_SECRETS_OF_OTHERS = {"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"}


@dataclass(frozen=True, slots=True)
class Variable:
    """A row of the table. `default` is readable text. `parse` raises ValueError with the allowed values."""

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
    """Parse a switch as OpenTelemetry defines it: any other word than true means off."""
    return text.lower() == "true"


def _debug(text: str) -> bool:
    """Parse a switch. Ollama also has a second, more verbose level."""
    return text == "2" or _switch(text)


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ValueError("a whole number of at least 0")
    return int(text)


def _range(text: str) -> tuple[int, int]:
    """Parse a number of at least 1, or a range of two such numbers with a dash."""
    least, dash, most = text.partition("-")
    found = _count(least.strip()), _count((most if dash else least).strip())
    if not 1 <= found[0] <= found[1]:
        raise ValueError("a number of at least 1, or a range such as 1-4")
    return found


def _gpus(text: str) -> float:
    """Parse a number of GPUs for Ray: a whole number, or a fraction of one GPU."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (0 <= number <= 1 or (1 < number < math.inf and number.is_integer())):
        raise ValueError("a whole number of GPUs, or a part of one, such as 0.5")
    return number


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_size(text: str) -> int:
    """Parse a number of bytes, with an optional decimal unit: "4GB", "500M". Raises ValueError."""
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
    """Return an environment without this server's keys, for processes that do not need them."""
    secret = {variable.name for variable in variables() if variable.parse is _secrets}
    return {name: value for name, value in environment.items() if name not in secret | _SECRETS_OF_OTHERS}


def child_environment() -> dict[str, str]:
    """Return the environment for a child process that runs a chaski module, without unneeded keys.

    The child uses the same module search path as this process.
    """
    return without_secrets(os.environ) | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


def _secrets(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip().lower() for word in text.split(",") if word.strip())


def _nodes(text: str) -> tuple[tuple[str, int, float | None], ...]:
    """Parse hosts, ports and shares."""
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
    """Parse origins for a Content-Security-Policy, which does not support IPv6 addresses."""
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
    """The parsed values. Unset or empty variables have their defaults."""

    context: int | None = _variable(
        "OLLAMA_CONTEXT_LENGTH",
        "number",
        "maximum tokens of one sequence, prompt included; limited by the context the model was trained for",
        _positive,
        unset="the model's own, as far as memory allows",
    )
    parallel: int | None = _variable(
        "OLLAMA_NUM_PARALLEL",
        "number",
        "number of sequences computed at the same time, each with its own context",
        _positive,
        unset="1, or as many as fit into 2,048 tokens for a model with bidirectional attention; "
        "4 in the server, or fewer for longer contexts",
    )
    kv_type: str | None = _variable(
        "OLLAMA_KV_CACHE_TYPE",
        "type",
        "element type of keys and values: f32, f16, bf16, i16, q8_0, q4_0 or q3_0, or two of them as "
        "keys:values",
        _word,
        unset="i16; f32 for a model of f32 weights",
    )
    multi_user: bool | None = _variable(
        "OLLAMA_MULTIUSER_CACHE",
        "switch",
        "on: while a slot is free, a prompt never drops cached tokens of another; off: it always continues "
        "in the slot that shares the longest prefix",
        _switch,
        unset="it continues there if it drops fewer tokens than it reuses",
    )
    flash_attention: bool = _variable(
        "OLLAMA_FLASH_ATTENTION",
        "switch",
        "off: attention computes all scores of a token before weighting values; not with q8_0, q4_0 and q3_0",
        _switch,
        default=True,
        unset="on",
    )
    threads: int | None = _variable(
        "CHASKI_THREADS",
        "number",
        "number of cores to compute on",
        _positive,
        unset="the physical cores allowed by CPU affinity and quotas",
    )
    isa: str = _variable(
        "CHASKI_ISA",
        "name",
        "instruction set of the kernels, one of those listed by `chaski info`",
        _word,
        default="auto",
        unset="the fastest",
    )
    backend: str = _variable(
        "CHASKI_BACKEND",
        "name",
        "backend that computes models: auto (an NVIDIA GPU if available, else the CPU), cpu, cuda, "
        "reference (NumPy), or sharded (on the nodes of CHASKI_NODES)",
        _word,
        default=AUTO,
        unset="auto; sharded if CHASKI_NODES is set",
    )
    num_gpu: int | None = _variable(
        "CHASKI_NUM_GPU",
        "number",
        "number of trailing layers to place on GPUs, counting the output as one; 0 uses no GPU",
        _count,
        unset="as many as fit",
    )
    main_gpu: int | None = _variable(
        "CHASKI_MAIN_GPU",
        "number",
        "number of the GPU for a model that fits on one GPU",
        _count,
        unset="the one with the most free memory",
    )
    tensor_split: tuple[float, ...] = _variable(
        "CHASKI_TENSOR_SPLIT",
        "shares",
        "share of a model on each GPU, such as 3,1",
        _shares,
        default=(),
        unset="in proportion to its free memory",
    )
    n_cpu_moe: int | None = _variable(
        "CHASKI_N_CPU_MOE",
        "number",
        "number of leading layers whose experts stay on the processor; the rest of these layers is on a GPU",
        _count,
        unset="as few as the GPU's memory allows",
    )
    cpu_moe: bool = _variable(
        "CHASKI_CPU_MOE",
        "switch",
        "on: the experts of all layers stay on the processor; the rest of these layers is on a GPU",
        _switch,
        default=False,
        unset="off",
    )
    override_tensor: str = _variable(
        "CHASKI_OVERRIDE_TENSOR",
        "patterns",
        r"devices of tensors by their names, as for llama.cpp's -ot: `blk\.(1|2)\.ffn_.*_exps=CPU`, several "
        "separated by commas",
        str,
        default="",
        unset="none",
    )
    gpu_experts: int | None = _variable(
        "CHASKI_GPU_EXPERTS",
        "number",
        "number of experts of each layer that a GPU has, while the processor computes the others; 0 for none",
        _count,
        unset="what is predicted to be faster",
    )
    expert_memory: int | None = _variable(
        "CHASKI_EXPERT_MEMORY",
        "size",
        "the most memory for experts, such as 12GB; others are read from the file when tokens choose them",
        parse_size,
        unset="all experts, or what the rest of the model leaves free",
    )
    sched_spread: bool = _variable(
        "OLLAMA_SCHED_SPREAD",
        "switch",
        "on: all GPUs share a model, even if it fits on one",
        _switch,
        default=False,
        unset="off",
    )
    gpu_overhead: int = _variable(
        "OLLAMA_GPU_OVERHEAD",
        "number",
        "memory to keep free on each GPU",
        parse_size,
        default=0,
    )
    nodes: tuple[tuple[str, int, float | None], ...] = _variable(
        "CHASKI_NODES",
        "addresses",
        "the nodes that compute each model together, host:port of each `chaski shard`, separated by commas; "
        "host:port=2 gets twice the layers of host:port=1",
        _nodes,
        default=(),
        unset="none; this machine computes",
    )
    split: str = _variable(
        "CHASKI_SPLIT",
        "word",
        "how nodes or several GPUs divide a model: layers (consecutive ones each) or rows of every matrix",
        _split,
        default="layers",
    )
    nodes_key: str | None = _variable(
        "CHASKI_NODES_KEY",
        "path",
        "file with the shared key of all nodes, at least 32 random characters",
        str,
        unset="none",
    )
    variants: str = _variable(
        "CHASKI_VARIANTS",
        "name",
        "choice of kernel variants, which all give the same bits: measured (the fastest ones on this "
        "machine, as listed by `chaski info`), first (the first of each list), or random:SEED, for tests",
        _variants,
        default="measured",
    )

    engine: str | None = _variable(
        "CHASKI_ENGINE",
        "name",
        "engine of all models that do not name one: native or llama.cpp",
        _engine,
        unset="native for its architectures; llama.cpp for others, if installed",
    )

    prefix_cache: str = _variable(
        "CHASKI_PREFIX_CACHE",
        "word",
        "where prefixes of prompts are cached after their sequences end: on (memory and disk), "
        "memory, or off",
        _prefix_cache,
        default="on",
    )
    prefix_cache_memory: int | None = _variable(
        "CHASKI_PREFIX_CACHE_MEMORY",
        "size",
        "maximum memory of a model's prefix cache, such as 4GB",
        parse_size,
        unset="an eighth of the memory that is free when the model is loaded",
    )
    prefix_cache_disk: int | None = _variable(
        "CHASKI_PREFIX_CACHE_DISK",
        "size",
        "maximum disk space of the prefix cache of all models; 0 disables it",
        parse_size,
        unset="10GB, or a tenth of the free space",
    )
    prefix_cache_writes: int | None = _variable(
        "CHASKI_PREFIX_CACHE_WRITES",
        "size",
        "maximum bytes that the prefix cache writes to disk per day (UTC)",
        parse_size,
        unset="50GB",
    )
    answers: bool = _variable(
        "CHASKI_ANSWERS",
        "switch",
        "off: a model whose file contains prewritten answers, such as the guide, generates text freely",
        _switch,
        default=True,
        unset="on",
    )

    models: str | None = _variable(
        "OLLAMA_MODELS",
        "folder",
        "folder of the model store: manifests and blobs, in Ollama's layout",
        str,
        unset="~/.ollama/models",
    )
    keeps_unused: bool = _variable(
        "OLLAMA_NOPRUNE",
        "switch",
        "on: keep blobs that become unused after a pull, a create or a removal",
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
        "address where the server listens and commands find it: host, host:port or a URL; if set, "
        "commands on models use that server instead of the local store",
        str,
        unset="127.0.0.1:11434",
    )
    origins: tuple[str, ...] = _variable(
        "OLLAMA_ORIGINS",
        "origins",
        "origins of web pages that may use the server, separated by commas; * stands for any text",
        _words,
        default=(),
        unset="origins of this machine",
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
        unset="no client may do so if API keys are set, else every client",
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
        "maximum memory of all LoRA adapters of a model, such as 2GB; the least recently used one is removed "
        "first",
        parse_size,
        unset="a quarter of the memory that is free when the first one is loaded",
    )
    states: str | None = _variable(
        "CHASKI_STATES",
        "path",
        "folder where the server stores states saved with llama.cpp's /slots",
        str,
        unset="none, so that nothing is saved",
    )
    states_size: int | None = _variable(
        "CHASKI_STATES_SIZE",
        "size",
        "maximum disk space of that folder; a state that does not fit is rejected",
        parse_size,
        unset="10GB",
    )
    files: int | None = _variable(
        "CHASKI_FILES",
        "size",
        "maximum disk space of files of /v1/files in the store, including results; 0 allows none",
        parse_size,
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
        "on: the server listens on other addresses than loopback even without API keys",
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
        "on: do not keep lines typed in chats in ~/.ollama/history",
        _switch,
        default=False,
        unset="off",
    )
    cluster: str | None = _variable(
        "CHASKI_CLUSTER",
        "address",
        "address of the Ray cluster that computes the server's models; local starts one on this machine",
        str,
        unset="none; this machine computes",
    )
    replicas: tuple[int, int] = _variable(
        "CHASKI_REPLICAS",
        "number",
        "number of replicas of a model in a cluster; a range such as 1-4 follows the load",
        _range,
        (1, 1),
        unset="1",
    )
    shards: tuple[int, int] = _variable(
        "CHASKI_SHARDS",
        "number",
        "number of nodes that compute each replica together; a range such as 1-4 uses the fewest nodes "
        "with enough memory",
        _range,
        (1, 1),
        unset="1",
    )
    gpus: float | None = _variable(
        "CHASKI_GPUS",
        "number",
        "GPUs of each replica in a cluster, or of each of its nodes; 0.5: two replicas share one",
        _gpus,
        unset="1 if the cluster has GPUs that a replica would use",
    )
    access_log: str | None = _variable(
        "CHASKI_ACCESS_LOG",
        "path",
        "file to which the server appends a line of JSON per request; - means standard error",
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
        "protocol for sending spans; only http/protobuf is supported",
        _word,
        unset="OTEL_EXPORTER_OTLP_PROTOCOL",
    )
    otlp_protocol: str | None = _variable(
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "name",
        "the same, for all OpenTelemetry data",
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
        "true: do not create or send spans",
        _is_true,
        default=False,
        unset="false",
    )
    debug: bool = _variable(
        "OLLAMA_DEBUG",
        "switch",
        "on, or 2: the server logs requests and the loading and unloading of models, as with --verbose",
        _debug,
        default=False,
        unset="off",
    )
    editor: str | None = _variable(
        "OLLAMA_EDITOR",
        "command",
        "the editor that Ctrl-X Ctrl-E opens for a message in a chat",
        str,
        unset="VISUAL, EDITOR, or an installed editor",
    )
    keep_alive: float = _variable(
        "OLLAMA_KEEP_ALIVE",
        "duration",
        "how long the server keeps a model after its last request; 0 unloads it at once, below 0 is forever",
        _seconds,
        default=300.0,
        unset="5m",
    )
    load_timeout: float = _variable(
        "OLLAMA_LOAD_TIMEOUT",
        "duration",
        "how long loading may make no progress before the server cancels it; 0 and below means no limit",
        _seconds,
        default=300.0,
        unset="5m",
    )
    max_loaded: int = _variable(
        "OLLAMA_MAX_LOADED_MODELS",
        "number",
        "maximum number of models that the server keeps in memory; 0 means 3",
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
        "how long the server waits for the next piece of a request or upload",
        _waiting_seconds,
        default=30.0,
        unset="30s",
    )
    read_timeout: float = _variable(
        "CHASKI_READ_TIMEOUT",
        "duration",
        "how long a client may stop reading its answer",
        _waiting_seconds,
        default=300.0,
        unset="5m",
    )
    grace: float = _variable(
        "CHASKI_GRACE",
        "duration",
        "how long running answers may go on after the server was told to end",
        _waiting_seconds,
        default=5.0,
        unset="5s",
    )
    body_memory: int = _variable(
        "CHASKI_BODY_MEMORY",
        "number",
        "maximum MiB of all large requests in progress; further ones wait, then get 503",
        _positive,
        default=1024,
    )
    max_connections: int | None = _variable(
        "CHASKI_MAX_CONNECTIONS",
        "number",
        "maximum connections; for a further one, the server closes the idlest or slowest, or answers 503",
        _positive,
        unset="as many as the limit of open files allows",
    )
    max_queue: int = _variable(
        "OLLAMA_MAX_QUEUE",
        "number",
        "maximum requests waiting for a model; further ones get 503",
        _positive,
        default=512,
    )

    @classmethod
    def read(cls, values: Mapping[str, str] = os.environ) -> Environment:
        """Parse every variable of the table. Raises OptionError, naming the allowed values."""
        found, given = {}, dict(values)  # many look-ups in a dict are faster than in os.environ
        for attribute in fields(cls):
            variable: Variable = attribute.metadata["variable"]
            # Values from service files and .env files often still contain their quotes.
            text = given.get(variable.name, "").strip().strip("\"'").strip()
            if text:
                found[attribute.name] = _parse(variable, text)
        if found.get("nodes"):
            found.setdefault("backend", "sharded")
        return cls(**found)


def variables() -> list[Variable]:
    """Return the rows of the table, in the order of their definition."""
    return [attribute.metadata["variable"] for attribute in fields(Environment)]


def _parse(variable: Variable, text: str) -> Any:
    try:
        return variable.parse(text)
    except ValueError as allowed:
        raise OptionError(f"environment variable {variable.name} = {text!r} must be {allowed}") from None


def set_by_option(option: str, name: str, text: str | None) -> None:
    """Set a variable to the value of a command's option, if one is given; worker processes inherit it.

    Raises OptionError for an invalid value. It names the option, because the user did not set the variable.
    """
    if text is None:
        return
    variable = next(row for row in variables() if row.name == name)
    try:
        variable.parse(text)
    except ValueError as allowed:
        raise OptionError(f"{option} = {text!r} must be {allowed}") from None
    os.environ[name] = text
