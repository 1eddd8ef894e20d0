"""Replaces the package of this name: a server on a socket with llama.cpp's protocol, without a model.

It continues a prompt with the prompt's own tokens in reverse order, several for a non-ASCII character, and
ends.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from base64 import b64decode
from enum import IntEnum
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any

END = 263  # of the tiny model
MARKER = "<__media_of_the_stand_in__>"
PROMPTS: list[dict[str, Any]] = []  # those with images
CACHED: list[bool] = []  # whether prompts may be reused
LEFT: list[str] = []  # answers whose client left


class ggml_type(IntEnum):  # noqa: N801 as the package calls it
    GGML_TYPE_F32 = 0
    GGML_TYPE_F16 = 1
    GGML_TYPE_Q8_0 = 8


class llama_flash_attn_type(IntEnum):  # noqa: N801
    LLAMA_FLASH_ATTN_TYPE_DISABLED = 0
    LLAMA_FLASH_ATTN_TYPE_ENABLED = 1


class llama_pooling_type(IntEnum):  # noqa: N801
    LLAMA_POOLING_TYPE_MEAN = 1


class CommonParams(SimpleNamespace):
    def __init__(self) -> None:
        threads = SimpleNamespace(n_threads=0), SimpleNamespace(n_threads=0)
        paths = {"model": SimpleNamespace(path=""), "mmproj": SimpleNamespace(path="")}
        super().__init__(**paths, cpuparams=threads[0], cpuparams_batch=threads[1])


class Server:
    parameters: CommonParams

    def __init__(self, parameters: CommonParams) -> None:
        if "broken" in parameters.model.path:
            raise RuntimeError("Failed to init server, please check the input params.")
        Server.parameters = parameters
        listener = _Listener(parameters.hostnames[0], _Handler)
        threading.Thread(target=listener.serve_forever, daemon=True).start()


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        assert self.path == "/props"
        self._reply(200, {"modalities": {"vision": True}, "media_marker": MARKER})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != f"Bearer {Server.parameters.api_keys[0]}":
            self._reply(401, {"error": {"code": 401, "message": "Invalid API Key"}})
        elif self.path == "/v1/chat/completions/input_tokens":
            self._reply(200, {"input_tokens": 4 if body["messages"][0]["content"] else 1})
        elif self.path == "/tokenize":
            begin = [262] if body["add_special"] else []
            self._reply(200, {"tokens": begin + list(body["content"].encode())})
        elif self.path == "/detokenize":
            self._reply(200, {"content": bytes(body["tokens"]).decode()})
        elif self.path == "/embedding":
            rows = [{"index": i, "embedding": [[3.0, 4.0]]} for i in range(len(body["content"]))]
            self._reply(200, rows[::-1])
        elif body["n_predict"] == 13:
            self._reply(500, {"error": {"code": 500, "message": "no luck"}})
        else:
            self._answer(body)

    def _answer(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        CACHED.append(body["cache_prompt"])
        prompt = body["prompt"]
        if isinstance(prompt, dict):  # the length of an image stands for it
            PROMPTS.append(prompt)
            parts = prompt["prompt_string"].split(MARKER)
            files = [f"<{len(b64decode(data))}>" for data in prompt["multimodal_data"]]
            prompt = "".join(a + b for a, b in zip(parts, [*files, ""], strict=True)).encode()
        text = bytes(token for token in reversed(prompt) if token < 256).decode()
        count = 0
        for character in text[: body["n_predict"]]:
            data = character.encode()
            count += len(data)
            self._data(content=character, tokens=[data[-1]], stop=False, tokens_predicted=count)
            if character == "~":
                self._wait_for_the_end()
                return
        ended = count < body["n_predict"]
        if ended:
            count += 1
            self._data(content="<|end_of_text|>", tokens=[END], stop=False, tokens_predicted=count)
        self._data(
            content="",
            tokens=[],
            stop=True,
            stop_type="eos" if ended else "limit",
            stopping_word="",
            tokens_predicted=count,
            tokens_cached=len(prompt) + count - 1,
            truncated=False,
            timings={"cache_n": 1, "prompt_ms": 10.0, "predicted_ms": 20.0},
        )

    def _wait_for_the_end(self) -> None:
        """Send an answer that continues until the client leaves."""
        try:
            while True:
                time.sleep(0.01)
                self.connection.sendall(b"data: " + json.dumps(_piece("x", 1)).encode() + b"\n\n")
        except OSError:
            LEFT.append(self.path)
            self.connection.shutdown(socket.SHUT_RDWR)

    def _data(self, **piece: Any) -> None:
        self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())

    def _reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def _piece(text: str, count: int) -> dict[str, Any]:
    return {"content": text, "tokens": [120], "stop": False, "tokens_predicted": count}
