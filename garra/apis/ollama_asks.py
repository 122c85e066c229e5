"""Requests in Ollama's words, put into the engine's. Pure.

Source: Ollama's API reference and what its clients send. Options that would start another engine in Ollama (num_gpu,
num_thread and the like) are taken and left alone: here the profile decides how an engine runs.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from garra.apis.bodies import decoded
from garra.errors import BadRequest

_SAMPLING = (
    "temperature top_k top_p min_p typical_p repeat_penalty repeat_last_n presence_penalty frequency_penalty seed stop"
).split()
_RENAMED = {"num_predict": "max_tokens", "num_keep": "n_keep"}
_IMAGE_TYPES = {"/9j/": "jpeg", "iVBOR": "png", "R0lG": "gif", "UklGR": "webp"}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_EFFORTS = ("low", "medium", "high", "max")


class Asked(msgspec.Struct):
    """The fields of all of Ollama's requests that garra reads."""

    model: str | None = None
    name: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool = False
    images: list[str] | None = None
    input: str | list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    stream: bool | None = None
    keep_alive: str | float | None = None
    truncate: bool | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    dimensions: int | None = None
    source: str | None = None
    destination: str | None = None
    verbose: bool | None = None

    def named(self) -> str:
        """The model, under the new name of the field or the old. Raises BadRequest."""
        if not (given := self.model or self.name):
            raise BadRequest("model is required", fix='add "model": "NAME"; GET /api/tags lists them')
        return given

    @property
    def streams(self) -> bool:
        """Answers are streams unless somebody asks otherwise."""
        return self.stream is not False

    @property
    def n_ctx(self) -> int | None:
        """The context the client counts on."""
        wanted = (self.options or {}).get("num_ctx")
        return wanted if isinstance(wanted, int) else None


class Ask(NamedTuple):
    """What goes to the engine."""

    path: str
    body: dict[str, Any]


def read(body: bytes) -> Asked:
    """Raises BadRequest."""
    return decoded(body or b"{}", Asked)


def keep_alive_s(given: str | float | None) -> float | None:
    """Seconds; negative: for ever; None: nothing was said. Raises BadRequest."""
    if given is None or isinstance(given, int | float):
        return given
    text = given.strip()
    sign = -1.0 if text.startswith("-") else 1.0
    text = text.lstrip("+-")
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return sign * float(text)
    if not text or _DURATION_PART.sub("", text):
        raise BadRequest(f'keep_alive "{given[:40]}" is no duration', fix='for example "5m", "1h30m", 300 or -1')
    return sign * sum(float(number) * _UNITS_S[unit] for number, unit in _DURATION_PART.findall(text))


def chat(asked: Asked) -> Ask:
    """A conversation. Raises BadRequest."""
    messages = _messages(asked.messages or [])
    body = {"messages": messages, **_common(asked)}
    if asked.tools:
        body["tools"] = asked.tools
    return Ask("/v1/chat/completions", body)


def generate(asked: Asked) -> Ask:
    """A prompt: as it stands (`raw`), around a gap (`suffix`), or as a question in the model's own template."""
    prompt = asked.prompt or ""
    if asked.suffix:
        return Ask("/infill", {"input_prefix": prompt, "input_suffix": asked.suffix, **_native(asked)})
    if asked.raw:
        return Ask("/completion", {"prompt": prompt, **_native(asked)})
    spoken = [{"role": "system", "content": asked.system}] if asked.system else []
    spoken.append({"role": "user", "content": _with_images(prompt, asked.images)})
    return Ask("/v1/chat/completions", {"messages": spoken, **_common(asked)})


def embed(asked: Asked) -> Ask:
    """One text or several. Raises BadRequest."""
    texts = asked.input if asked.input is not None else asked.prompt
    if texts is None:
        raise BadRequest("input is required", fix='add "input": "TEXT"')
    body: dict[str, Any] = {"input": texts, "encoding_format": "float"}
    if asked.dimensions:
        body["dimensions"] = asked.dimensions
    return Ask("/v1/embeddings", body)


def _common(asked: Asked) -> dict[str, Any]:
    """What a chat and a generation share, in OpenAI's words."""
    body: dict[str, Any] = {"stream": asked.streams, **_sampling(asked)}
    if asked.streams:
        body["stream_options"] = {"include_usage": True}
    if asked.format == "json":
        body["response_format"] = {"type": "json_object"}
    elif isinstance(asked.format, dict):
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "format", "schema": asked.format}}
    elif asked.format:
        raise BadRequest(f'format "{asked.format[:40]}" is not known', fix='"json", or a JSON schema as an object')
    if asked.logprobs:
        body |= {"logprobs": True, "top_logprobs": asked.top_logprobs}
    return body | _thinking(asked.think)


def _native(asked: Asked) -> dict[str, Any]:
    """The same in llama-server's own words."""
    body: dict[str, Any] = {"stream": asked.streams, **_sampling(asked)}
    if (n_predict := body.pop("max_tokens", None)) is not None:
        body["n_predict"] = n_predict
    if isinstance(asked.format, dict):
        body["json_schema"] = asked.format
    elif asked.format == "json":
        body["json_schema"] = {}
    if asked.logprobs:
        body["n_probs"] = max(1, asked.top_logprobs)
    return body


def _sampling(asked: Asked) -> dict[str, Any]:
    options = asked.options or {}
    body = {key: options[key] for key in _SAMPLING if options.get(key) is not None}
    body |= {ours: options[theirs] for theirs, ours in _RENAMED.items() if options.get(theirs) is not None}
    if isinstance(wanted := body.get("max_tokens"), int) and wanted < 0:
        body["max_tokens"] = -1  # Ollama's -2 fills the context: here that is the same
    return body


def _thinking(think: bool | str | None) -> dict[str, Any]:
    if think is None:
        return {}
    if isinstance(think, str) and think not in _EFFORTS:
        raise BadRequest(f'think "{think[:40]}" is not known', fix=f"true, false, or one of: {', '.join(_EFFORTS)}")
    body: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": bool(think)}}
    return body | ({"reasoning_effort": think} if isinstance(think, str) else {})


def _messages(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In OpenAI's form: calls get ids, and what a tool said names the call it answers."""
    messages: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []
    for one in given:
        role, content = one.get("role"), one.get("content") or ""
        if not isinstance(role, str):
            raise BadRequest("a message has no role", fix='"role": "user"')
        made: dict[str, Any] = {"role": role, "content": _with_images(content, one.get("images"))}
        if thinking := one.get("thinking"):
            made["reasoning_content"] = thinking
        if calls := one.get("tool_calls"):
            made["tool_calls"] = [_call(call, n, open_calls) for n, call in enumerate(calls, len(open_calls))]
        if role == "tool":
            made["tool_call_id"] = _answered(one, open_calls)
        messages.append(made)
    return messages


def _call(call: Any, number: int, open_calls: list[tuple[str, str]]) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(name := function.get("name"), str):
        raise BadRequest("a tool call names no function")
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    ident = str(call.get("id") or f"call_{number}")
    open_calls.append((name, ident))
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": text}}


def _answered(one: dict[str, Any], open_calls: list[tuple[str, str]]) -> str:
    """The call a tool's message answers: the one it names, else the oldest of that tool, else the oldest."""
    if isinstance(ident := one.get("tool_call_id"), str):
        return ident
    named = one.get("tool_name") or one.get("name")
    for n, (name, ident) in enumerate(open_calls):
        if named in (None, name):
            del open_calls[n]
            return ident
    return "call_0"


def _with_images(text: Any, images: Any) -> Any:
    if not images:
        return text
    parts = [{"type": "text", "text": text}] if text else []
    return [*parts, *({"type": "image_url", "image_url": {"url": _data_url(image)}} for image in images)]


def _data_url(image: Any) -> str:
    if not isinstance(image, str):
        raise BadRequest("an image is not base64 text")
    if image.startswith("data:"):
        return image
    kind = next((kind for start, kind in _IMAGE_TYPES.items() if image.startswith(start)), "png")
    return f"data:image/{kind};base64,{image}"
