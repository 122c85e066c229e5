"""Who is let in, and what is read of a body."""

from __future__ import annotations

import json

import pytest

from garra.apis.errors import error_body, error_event
from garra.errors import BadRequest, UnknownModel
from garra.proxy.guard import host_allow_list, objection
from garra.proxy.route import read_call

LOOPBACK = host_allow_list("127.0.0.1", ["box.lan"])


def ask(headers: dict[str, str], hosts: frozenset[str] = LOOPBACK) -> str | None:
    return objection(headers.get("Host"), headers.get("Origin"), headers.get("Sec-Fetch-Site"), hosts)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "127.0.0.1:11434"},
        {"Host": "localhost"},
        {"Host": "[::1]:11434"},
        {"Host": "BOX.lan:80"},
        {"Host": "localhost", "Origin": "http://localhost:3000"},
        {"Host": "localhost", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_our_own_are_let_in(headers: dict[str, str]) -> None:
    assert ask(headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost@evil.example"},
        {"Host": "10.0.0.5"},
        {"Host": ""},
        {"Host": "localhost", "Origin": "https://evil.example"},
        {"Host": "localhost", "Origin": "null"},
        {"Host": "localhost", "Origin": "http://[bad"},
        {"Host": "localhost", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_strangers_are_not(headers: dict[str, str]) -> None:
    assert ask(headers)


def test_a_wildcard_bind_takes_addresses_but_no_foreign_names() -> None:
    hosts = host_allow_list("0.0.0.0", [])
    assert ask({"Host": "192.168.1.7:11434"}, hosts) is None
    assert ask({"Host": "evil.example"}, hosts)


def test_only_model_and_stream_are_read() -> None:
    head = read_call(b'{"messages":[{"role":"user","content":"\\u00e9"}],"model":"demo","stream":true,"x":{"y":[1]}}')
    assert (head.model, head.stream) == ("demo", True)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":5}', b'{"messages":[]}', b'{"model":""}', b"\xff\xfe"])
def test_a_body_that_cannot_be_routed_is_a_400(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_call(body)


def test_errors_have_openais_shape() -> None:
    error = UnknownModel('no profile is called "x"', fix="there are: demo")
    told = json.loads(error_body(error))["error"]
    assert told["type"] == "invalid_request_error"
    assert told["code"] == "model_not_found"
    assert told["message"] == 'no profile is called "x". Fix: there are: demo'
    assert error_event(error).strip().startswith(b'data: {"error":')
