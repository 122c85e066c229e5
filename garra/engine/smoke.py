"""The proof that a build works: it loads a model and produces a token.

The model is written here, a few hundred kB of seeded noise in the llama architecture, so that a build can be proved on
a machine that has no model and no network.
"""

from __future__ import annotations

import array
import http.client
import json
import os
import random
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from garra.engine.argv import flags_of_help, needed_flags, smoke_argv, unsupported
from garra.errors import BuildFailed
from garra.spec import EngineBuild

START_LIMIT_S = 60.0
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5  # GGUF value types
_N_EMBD, _N_HEAD, _N_FF, _N_LAYER, _N_CTX = 64, 4, 128, 2, 2048
_ALIGNMENT = 32
_N_NO_LETTERS = 259  # three special tokens and all bytes come first in the vocabulary


def write_noise_model(path: Path, *, seed: int = 1) -> Path:
    """A loadable GGUF of random weights: llama architecture, byte vocabulary, ChatML template.

    Source: the GGUF version 3 layout (magic, counts, key-values, tensor table, aligned data).
    """
    tokens, types = _byte_vocabulary()
    tensors = list(_tensor_shapes(len(tokens)))
    values = [
        _pair("general.architecture", "llama"),
        _pair("general.name", f"noise-{seed}"),
        _pair("llama.block_count", _N_LAYER),
        _pair("llama.context_length", _N_CTX),
        _pair("llama.embedding_length", _N_EMBD),
        _pair("llama.feed_forward_length", _N_FF),
        _pair("llama.attention.head_count", _N_HEAD),
        _pair("llama.attention.layer_norm_rms_epsilon", 1e-5),
        _pair("llama.rope.dimension_count", _N_EMBD // _N_HEAD),
        _pair("tokenizer.ggml.model", "llama"),
        _array("tokenizer.ggml.tokens", _STRING, [_text(token) for token in tokens]),
        _array("tokenizer.ggml.scores", _F32, [struct.pack("<f", 0.0)] * len(tokens)),
        _array("tokenizer.ggml.token_type", _I32, [struct.pack("<i", kind) for kind in types]),
        _pair("tokenizer.ggml.bos_token_id", 1),
        _pair("tokenizer.ggml.eos_token_id", 2),
        _pair("tokenizer.chat_template", "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"),
    ]
    table, offset = b"", 0
    for name, shape in tensors:
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        table += _text(name) + dimensions + struct.pack("<IQ", 0, offset)  # 0: f32
        offset += -(-_count(shape) * 4 // _ALIGNMENT) * _ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values) + table
    noise = random.Random(seed)
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % _ALIGNMENT))
        for name, shape in tensors:
            flat = "norm" in name
            values_of = array.array("f", (1.0 if flat else noise.gauss(0, 0.2) for _ in range(_count(shape))))
            if name == "output.weight":  # letters win: half a character is no answer to some engines
                values_of[: _N_NO_LETTERS * _N_EMBD] = array.array("f", bytes(4 * _N_NO_LETTERS * _N_EMBD))
            data = values_of.tobytes()
            file.write(data + bytes(-len(data) % _ALIGNMENT))
    return path


def prove(build: EngineBuild) -> None:
    """Raises BuildFailed unless `build` knows garra's flags, loads a model and produces a token."""
    server, environment = build.tool("llama-server"), {**os.environ, **build.environment()}
    told = subprocess.run(
        [str(server), "--help"], capture_output=True, text=True, check=False, timeout=START_LIMIT_S, env=environment
    )
    if told.returncode != 0:
        raise BuildFailed(f"the new engine does not start: {(told.stderr or told.stdout).strip()[-400:]}")
    with tempfile.TemporaryDirectory(prefix="garra-smoke-") as folder:
        address = Path(folder) / "smoke.sock"
        model = write_noise_model(Path(folder) / "noise.gguf")
        command = smoke_argv(server, model, address)
        unknown = unsupported([*command, *needed_flags()], flags_of_help(told.stdout + told.stderr))
        if unknown:
            raise BuildFailed(f"this engine does not know {', '.join(unknown)}", fix="build the pinned sources")
        with (
            tempfile.TemporaryFile() as log,
            subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
        ):
            try:
                tokens = _first_token(process, address)
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                log.seek(0)
                tail = log.read()[-600:].decode("utf-8", "replace").strip()
                raise BuildFailed(f"the new engine failed its first test ({error}): {tail}") from None
            finally:
                process.kill()
    if tokens < 1:
        raise BuildFailed("the new engine loaded a model but produced no token")


def _first_token(process: subprocess.Popen[bytes], address: Path) -> int:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ValueError(f"it ended with status {process.returncode}")
        try:
            status, _ = _ask(address, "GET", "/health", None)
        except (ConnectionError, FileNotFoundError):
            status = 0
        if status == 200:
            body = json.dumps({"prompt": "garra", "n_predict": 1, "temperature": 0}).encode()
            status, reply = _ask(address, "POST", "/completion", body)
            if status != 200:
                raise ValueError(f"it answered {status}: {reply[:200].decode('utf-8', 'replace')}")
            return int(json.loads(reply)["tokens_predicted"])
        time.sleep(0.02)
    raise ValueError(f"it was not ready after {START_LIMIT_S:.0f} s")


def _ask(address: Path, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("localhost", timeout=START_LIMIT_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(START_LIMIT_S)
    try:
        connection.sock.connect(str(address))
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def _byte_vocabulary() -> tuple[list[str], list[int]]:
    """Three special tokens, 256 bytes, the word mark and a few letters; with llama's token types."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [2, 3, 3] + [6] * 256
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    return tokens + letters, types + [1] * len(letters)


def _tensor_shapes(n_vocab: int) -> list[tuple[str, tuple[int, ...]]]:
    shapes: list[tuple[str, tuple[int, ...]]] = [("token_embd.weight", (_N_EMBD, n_vocab))]
    for layer in range(_N_LAYER):
        block = f"blk.{layer}."
        shapes += [(f"{block}{name}.weight", (_N_EMBD,)) for name in ("attn_norm", "ffn_norm")]
        shapes += [(f"{block}attn_{name}.weight", (_N_EMBD, _N_EMBD)) for name in ("q", "k", "v", "output")]
        shapes += [(f"{block}ffn_{name}.weight", (_N_EMBD, _N_FF)) for name in ("gate", "up")]
        shapes += [(f"{block}ffn_down.weight", (_N_FF, _N_EMBD))]
    return [*shapes, ("output_norm.weight", (_N_EMBD,)), ("output.weight", (_N_EMBD, n_vocab))]


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _pair(key: str, value: str | int | float) -> bytes:
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", _STRING) + _text(value)
    kind, form = (_F32, "<f") if isinstance(value, float) else (_U32, "<I")
    return _text(key) + struct.pack("<I", kind) + struct.pack(form, value)


def _array(key: str, kind: int, items: list[bytes]) -> bytes:
    return _text(key) + struct.pack("<IIQ", _ARRAY, kind, len(items)) + b"".join(items)
