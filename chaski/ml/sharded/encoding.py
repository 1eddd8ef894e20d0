"""Messages to members as JSON and arrays: pieces of graphs, weights, storage. No message contains code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import convert, to_builtins
from msgspec.structs import replace

from chaski.errors import ClusterError
from chaski.formats.gguf import TensorInfo
from chaski.formats.quant import QuantType
from chaski.ml.backend import CacheConfig, Device, DeviceMemory, LayerExperts, Memory
from chaski.ml.graph import AdapterTable, Dim, DType, Graph, KVBuffer, Operand, Shape, Tensor, Weight
from chaski.ml.sharded.pieces import Gather, Piece, Send
from chaski.ml.sharded.placement import Cut

__all__ = [
    "Arrays",
    "Fields",
    "cache_config",
    "decode_content",
    "decode_memory",
    "decode_pieces",
    "decode_tensor",
    "decode_weight",
    "device",
    "encode_cache_config",
    "encode_content",
    "encode_device",
    "encode_memory",
    "encode_pieces",
    "encode_tensor",
    "encode_weight",
]

Fields = Mapping[str, Any]
Arrays = list[npt.NDArray[Any]]


def encode_pieces(pieces: Sequence[Piece], arrays: Arrays) -> list[Fields]:
    """Arrays among the attributes of operations are put after `arrays`; ranges of members become lists."""
    return [
        {
            "gathers": to_builtins(piece.gathers, enc_hook=list),
            "graph": _graph(piece.graph, arrays),
            "values": piece.values,
            "ids": to_builtins(piece.ids),
            "sends": to_builtins(piece.sends, enc_hook=list),
        }
        for piece in pieces
    ]


def decode_pieces(
    pieces: Sequence[Fields],
    arrays: Arrays,
    weights: Sequence[Weight],
    buffers: Sequence[KVBuffer],
    tables: Sequence[AdapterTable],
) -> list[Piece]:
    """Return the pieces, with the weights, storage and adapters whose numbers their graphs contain."""
    named: Mapping[str, Sequence[Operand]] = {"weight": weights, "buffer": buffers, "table": tables}
    return [
        Piece(
            gathers=convert(piece["gathers"], list[Gather]),
            graph=_decode_graph(piece["graph"], arrays, named),
            values=piece["values"],
            ids=convert(piece["ids"], dict[str, tuple[str, Cut]]),
            sends=convert(piece["sends"], list[Send]),
        )
        for piece in pieces
    ]


def _graph(graph: Graph, arrays: Arrays) -> Fields:
    numbers = {node: number for number, node in enumerate(graph.nodes)}

    def operand(x: Operand) -> Any:
        if isinstance(x, Tensor):
            return numbers[x]
        if isinstance(x, AdapterTable):
            assert isinstance(x.handle, int), "the number of a table"
            return ["table", x.handle]
        return ["weight" if isinstance(x, Weight) else "buffer", x.handle]

    def value(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            arrays.append(np.ascontiguousarray(x))
            return {"array": len(arrays) - 1}
        if isinstance(x, tuple | list):
            return [value(each) for each in x]
        return x.item() if isinstance(x, np.generic) else x

    nodes = [
        [
            node.op,
            [operand(x) for x in node.operands],
            [[size.name, size.maximum] if isinstance(size, Dim) else size for size in node.shape],
            node.dtype.value,
            {name: value(x) for name, x in node.attributes.items()},
        ]
        for node in graph.nodes
    ]
    return {
        "dtype": graph.dtype.value,
        "product_types": sorted(type.name for type in graph.product_types),
        "nodes": nodes,
        "outputs": {name: numbers[node] for name, node in graph.outputs.items()},
    }


def _decode_graph(fields: Fields, arrays: Arrays, named: Mapping[str, Sequence[Operand]]) -> Graph:
    types = frozenset(QuantType[name] for name in fields["product_types"])
    graph = Graph(DType(fields["dtype"]), product_types=types)

    def operand(x: Any) -> Operand:
        if isinstance(x, int):
            return graph.nodes[x]
        kind, number = x
        found: Operand = named[kind][number]
        return found

    def value(x: Any) -> Any:
        if isinstance(x, dict):
            return arrays[x["array"]]
        return [value(each) for each in x] if isinstance(x, list) else x

    for op, operands, sizes, dtype, attributes in fields["nodes"]:
        shape: Shape = tuple(Dim(*size) if isinstance(size, list) else size for size in sizes)
        if op == "input":
            graph.input(attributes["name"], shape, DType(dtype))
        else:
            known = {name: value(x) for name, x in attributes.items()}
            graph.record(op, tuple(map(operand, operands)), shape, DType(dtype), **known)
    for name, number in fields["outputs"].items():
        graph.output(name, graph.nodes[number])
    return graph


def encode_weight(weight: Weight) -> Fields:
    return {
        "shape": list(weight.shape),
        "plain": weight.plain,
        "constant": weight.constant,
        "name": weight.name,
    }


def decode_weight(fields: Fields) -> Weight:
    shape, plain, constant = tuple(fields["shape"]), fields["plain"], fields["constant"]
    return Weight(shape, plain=plain, constant=constant, name=fields["name"])


def encode_tensor(info: TensorInfo, file: int) -> Fields:
    """Describe a tensor. `file` is the number of the file that contains it."""
    return {
        "file": file,
        "name": info.name,
        "shape": list(info.shape),
        "type": info.type.name,
        "offset": info.offset,
        "strides": list(info.strides),
    }


def encode_content(info: TensorInfo) -> Fields:
    """Describe a matrix whose bytes are sent alongside."""
    row = info.shape[-1] // info.type.block_size * info.type.block_bytes
    return {**encode_tensor(info, 0), "path": str(info.path), "offset": 0, "strides": [row]}


def decode_content(fields: Fields, content: npt.NDArray[np.uint8] | None) -> TensorInfo:
    """Return a matrix from its bytes; with None, it has a type and a shape but no values."""
    rows, (row,) = fields["shape"][0], fields["strides"]
    if content is None:
        content = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (rows * row,), (0,))
    return decode_tensor(fields, Path(fields["path"]), content)


def decode_tensor(fields: Fields, path: Path, content: npt.NDArray[np.uint8]) -> TensorInfo:
    """Return a tensor from the bytes of its file. Raises ClusterError if it is outside the file."""
    shape, strides, type = tuple(fields["shape"]), tuple(fields["strides"]), QuantType[fields["type"]]
    blocks = (*shape[:-1], shape[-1] // type.block_size, type.block_bytes)
    steps = (*strides, type.block_bytes, 1)
    offset = fields["offset"]
    end = offset + 1 + sum((size - 1) * step for size, step in zip(blocks, steps, strict=True))
    if min((offset, *shape, *steps)) < 0 or 0 in shape or end > content.size:
        raise ClusterError(f"{path}: tensor {fields['name']} is outside the file")
    data = np.lib.stride_tricks.as_strided(content[offset:], blocks, steps, writeable=False)
    return TensorInfo(fields["name"], shape, type, path, offset, data.size, data)


def encode_device(device: Device) -> Fields:
    """Describe a device without its kernel variants, which concern only its own machine."""
    fields: Fields = to_builtins(replace(device, variants={}))
    return fields


def device(fields: Fields, name: str) -> Device:
    """Return a device of a member under a name that is unique among all members."""
    return replace(convert(fields, Device), name=name)


def encode_memory(memory: Memory) -> Fields:
    return {"memory": to_builtins(memory.devices), "experts": to_builtins(memory.experts)}


def decode_memory(fields: Fields, names: Mapping[str, str]) -> Memory:
    """Return the memory that a member holds, with its devices renamed by `names`."""
    held = convert(fields["memory"], tuple[DeviceMemory, ...])
    experts = convert(fields["experts"], tuple[LayerExperts, ...])
    return Memory(tuple(replace(each, device=names[each.device]) for each in held), experts)


def encode_cache_config(config: CacheConfig) -> Fields:
    fields: Fields = to_builtins(config)
    return fields


def cache_config(fields: Fields) -> CacheConfig:
    return convert(fields, CacheConfig)
