"""Embed texts with another engine for every line on standard input.

Runs in an interpreter that has the engine: torch and transformers, ONNX Runtime, or llama-cpp-python. After
loading, it prints an empty JSON object. Then it answers each line with the seconds that it took, by the clock
(`wall`) and in processor time of all threads (`cpu`). The texts are ids (texts, tokens) in a file of
numpy.save; their means, of length 1, are written to `--rows`. `make` is not an engine: it writes the
checkpoint of random weights, and its ONNX files, which the engines read.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__: list[str] = []

Embed = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Maps ids of texts (texts, tokens) to the means of their rows (texts, size)."""

_POSITIONS = 512


def make(arguments: argparse.Namespace) -> None:
    """Make the shape of bert-base with random weights that are no wider than trained ones."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    config = transformers.BertConfig(
        num_hidden_layers=arguments.layers, attn_implementation="eager", pad_token_id=0
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(arguments.model)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(4, config.vocab_size))]
    tokenizer = {
        "model": {"type": "WordPiece", "vocab": {token: i for i, token in enumerate(vocabulary)}},
        "normalizer": {"type": "BertNormalizer"},
        "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]},
    }
    (arguments.model / "tokenizer.json").write_text(json.dumps(tokenizer))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (arguments.model / "tokenizer_config.json").write_text(json.dumps(names))
    _export(torch, model, arguments.model)


def _export(torch: Any, model: Any, folder: Path) -> None:
    """Export as float32 and with int8 matrices, each unchanged and with attention as one operation."""

    class Rows(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state

    names = {"input_names": ["ids"], "output_names": ["rows"], "dynamo": False}
    sizes = {name: {0: "texts", 1: "tokens"} for name in ("ids", "rows")}
    ids = torch.zeros((2, 8), dtype=torch.int64)
    torch.onnx.export(Rows(), (ids,), str(folder / "F32.onnx"), dynamic_axes=sizes, **names)
    optimizer = importlib.import_module("onnxruntime.transformers.optimizer")
    heads, size = model.config.num_attention_heads, model.config.hidden_size
    fused = optimizer.optimize_model(str(folder / "F32.onnx"), "bert", num_heads=heads, hidden_size=size)
    fused.save_model_to_file(str(folder / "F32-fused.onnx"))
    quantization = importlib.import_module("onnxruntime.quantization")
    for suffix in ("", "-fused"):
        quantization.quantize_dynamic(
            folder / f"F32{suffix}.onnx",
            folder / f"int8{suffix}.onnx",
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            extra_options={"DefaultTensorType": importlib.import_module("onnx").TensorProto.FLOAT},
        )


def torch_engine(arguments: argparse.Namespace) -> Embed:
    """Make an engine of transformers and torch, which also stands for sentence-transformers."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.set_num_threads(arguments.threads)
    dtype = {"F32": torch.float32, "BF16": torch.bfloat16}[arguments.type]
    model = transformers.AutoModel.from_pretrained(arguments.model, dtype=dtype).eval()

    def embed(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.inference_mode():
            rows = model(input_ids=torch.from_numpy(ids)).last_hidden_state
            found: NDArray[np.float32] = rows.float().mean(dim=1).numpy()
        return found

    return embed


def onnx_engine(arguments: argparse.Namespace) -> Embed:
    onnx = importlib.import_module("onnxruntime")
    options = onnx.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    session = onnx.InferenceSession(str(arguments.model / f"{arguments.type}.onnx"), options)

    def embed(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = session.run(["rows"], {"ids": ids})[0]
        found: NDArray[np.float32] = rows.mean(axis=1)
        return found

    return embed


def llama_cpp_engine(arguments: argparse.Namespace) -> Embed:
    api: Any = importlib.import_module("llama_cpp.llama_cpp")
    silence = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(silence, ctypes.c_void_p(0))
    api.llama_backend_init()
    path = arguments.model / f"{arguments.type}.gguf"
    model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    room = arguments.batch * _POSITIONS
    params.n_ctx = params.n_batch = params.n_ubatch = room
    params.n_seq_max, params.embeddings, params.kv_unified = arguments.batch, True, True
    params.n_threads = params.n_threads_batch = arguments.threads
    params.flash_attn_type = int(arguments.flash)
    context = api.llama_init_from_model(model, params) if model else None
    if not context:
        raise SystemExit(f"llama.cpp cannot load {path}")
    batch, size = api.llama_batch_init(room, 0, 1), api.llama_model_n_embd(model)

    def embed(ids: NDArray[np.int64], keep: Any = silence) -> NDArray[np.float32]:
        batch.n_tokens = ids.size
        for index, ((text, place), token) in enumerate(np.ndenumerate(ids)):
            batch.token[index], batch.pos[index] = int(token), place
            batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, text, True
        code = api.llama_encode(context, batch)
        if code:
            raise SystemExit(f"llama_encode failed with {code}")
        rows = [api.llama_get_embeddings_seq(context, text) for text in range(len(ids))]
        return np.stack([np.ctypeslib.as_array(row, (size,)).copy() for row in rows])

    return embed


ENGINES = {"torch": torch_engine, "onnx": onnx_engine, "llama.cpp": llama_cpp_engine}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("engine", choices=["make", *ENGINES])
    parser.add_argument("model", type=Path, help="the folder of the checkpoint and the files made of it")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--type", default="F32")
    parser.add_argument("--batch", type=int, default=16, help="texts at once")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flash", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def main() -> None:
    """Answer lines until standard input ends."""
    arguments = _arguments()
    if arguments.engine == "make":
        make(arguments)
        return
    embed = ENGINES[arguments.engine](arguments)
    texts = np.load(arguments.texts)
    embed(texts[:1])
    print("{}", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter(), time.process_time()
        parts = [
            embed(texts[begin : begin + arguments.batch]) for begin in range(0, len(texts), arguments.batch)
        ]
        rows = np.concatenate(parts)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        found = {"wall": time.perf_counter() - started[0], "cpu": time.process_time() - started[1]}
        np.save(arguments.rows, rows)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
