"""garra's own OpenAPI document, made of the table of routes. Pure.

It says what garra checks and promises: which paths there are, what a body must hold for garra to route it, and the form
of every error. What an engine makes of the rest of a body is the engine's to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from garra.apis.routes import ROUTES, Api, Route, Work

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_ANY: Json = {}
_MESSAGES: Json = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": _TEXT},
        "required": ["role", "content"],
    },
    "minItems": 1,
}
_TEXTS: Json = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}
_STREAM: Json = {"type": "boolean"}
_FEW: Json = {"type": "integer", "minimum": 1, "maximum": 4}

_BODIES: dict[str, Json] = {
    "chat/completions": {"messages": _MESSAGES, "stream": _STREAM, "max_tokens": _FEW},
    "chat/completions/input_tokens": {"messages": _MESSAGES},
    "chat/completions/control": {"id": _TEXT, "action": {"enum": ["reasoning_end"]}},
    "completions": {"prompt": _TEXT, "stream": _STREAM, "max_tokens": _FEW},
    "completion": {"prompt": _TEXT, "stream": _STREAM, "n_predict": _FEW},
    "responses": {"input": _TEXT, "stream": _STREAM, "max_output_tokens": _FEW},
    "responses/input_tokens": {"input": _TEXT},
    "messages": {"messages": _MESSAGES, "stream": _STREAM, "max_tokens": _FEW},
    "messages/count_tokens": {"messages": _MESSAGES},
    "embeddings": {"input": _TEXTS},
    "embedding": {"content": _TEXT},
    "rerank": {"query": _TEXT, "documents": {"type": "array", "items": _TEXT, "minItems": 1}},
    "reranking": {"query": _TEXT, "documents": {"type": "array", "items": _TEXT, "minItems": 1}},
    "infill": {"input_prefix": _TEXT, "input_suffix": _TEXT, "n_predict": _FEW},
    "tokenize": {"content": _TEXT},
    "detokenize": {"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 100}}},
    "apply-template": {"messages": _MESSAGES},
}
_OLLAMA: dict[str, tuple[str, Json, list[str]]] = {
    "/api/chat": ("post", {"messages": _MESSAGES, "stream": _STREAM, "options": {"type": "object"}}, ["messages"]),
    "/api/generate": ("post", {"prompt": _TEXT, "system": _TEXT, "stream": _STREAM}, ["prompt"]),
    "/api/embed": ("post", {"input": _TEXTS, "truncate": {"type": "boolean"}}, ["input"]),
    "/api/embeddings": ("post", {"prompt": _TEXT}, ["prompt"]),
    "/api/show": ("post", {"verbose": {"type": "boolean"}}, []),
}
_LOOKS = {
    "/v1/models": "the models", "/models": "the models", "/health": "whether garra lives", "/v1/health": "the same",
    "/metrics": "figures in Prometheus's format", "/api/tags": "the models that are here", "/api/ps": "those loaded",
    "/garra/v1/status": "what there is to see",
    "/api/version": "the API's version", "/": "whether somebody is at home", "/openapi.json": "this document",
}  # fmt: skip

_OPENAI_ERROR: Json = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"message": _TEXT, "type": _TEXT, "code": {"type": ["string", "integer", "null"]}},
            "required": ["message", "type"],
        }
    },
    "required": ["error"],
}
_ANTHROPIC_ERROR: Json = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {"type": "object", "properties": {"type": _TEXT, "message": _TEXT}, "required": ["type", "message"]},
    },
    "required": ["type", "error"],
}
_OLLAMA_ERROR: Json = {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}


def document(version: str, models: Iterable[str]) -> Json:
    """The document for this garra; `models` are the names one may ask for."""
    model: Json = {"type": "string", "enum": list(models)}
    paths: dict[str, Json] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, model)
    for path, (method, properties, required) in _OLLAMA.items():
        body = _body({"model": model, **properties}, ["model", *required])
        paths[path] = {method: {"summary": "Ollama", "requestBody": body, "responses": _answers(Api.OLLAMA)}}
    for path, told in _LOOKS.items():
        api = Api.OLLAMA if path.startswith("/api/") else Api.OPENAI
        paths[path] = {"get": {"summary": told, "responses": _answers(api)}}
    info = {"title": "garra", "version": version, "description": "docs/api.md says it in words"}
    security = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": info,
        "paths": paths,
        "components": {"securitySchemes": security},
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, model: Json) -> Json:
    told: Json = {"summary": f"{route.api.value}: {route.work.value}", "responses": _answers(route.api)}
    if route.method == "GET":
        return told | {"parameters": [{"name": "model", "in": "query", "schema": model, "required": False}]}
    properties = _BODIES[route.path.removeprefix("/v1").strip("/")]
    required = [key for key in properties if key not in ("stream", "max_tokens", "n_predict", "max_output_tokens")]
    named = [] if route.work is Work.STEER else ["model"]
    return told | {"requestBody": _body({"model": model, **properties}, [*named, *required])}


def _body(properties: Json, required: list[str]) -> Json:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _answers(api: Api) -> Json:
    error = {Api.MESSAGES: _ANTHROPIC_ERROR, Api.OLLAMA: _OLLAMA_ERROR}.get(api, _OPENAI_ERROR)
    failure = {"description": "an error, in the words of this API", "content": {"application/json": {"schema": error}}}
    codes = ("400", "401", "403", "404", "413", "422", "429", "501", "503", "504")  # no 500: that would be a bug
    return {"200": {"description": "as the API has it"}, **dict.fromkeys(codes, failure)}
