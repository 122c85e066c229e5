"""Who may reach garra, from a shell and from a browser; what is written down, and what never is."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.engine.conftest import Make
from tests.support import Garra, eventually

SECRET = "the-prompt-nobody-may-write-down"
CHROMIUM = shutil.which("chromium")
ASK = {"model": "demo", "messages": [{"role": "user", "content": SECRET}], "stream": True}


def key_of(garra: Garra, name: str, *words: str) -> str:
    told = json.loads(garra.run("keys", "create", name, *words, "--json", check=True).stdout)
    return str(told["key"])


def status_with(garra: Garra, key: str | None, method: str = "POST", path: str = "/v1/chat/completions") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    body = ASK if method == "POST" else None
    return httpx.request(method, garra.url + path, json=body, headers=headers, timeout=180).status_code


def test_keys_from_the_first_to_the_last(stubbed: Make) -> None:
    garra = stubbed("late").up("demo")
    assert status_with(garra, None) == 200
    one = key_of(garra, "one")
    scoped = key_of(garra, "scoped", "--profiles", "other", "--rpm", "2")
    assert [status_with(garra, key) for key in (None, "wrong", one + "x", one)] == [401, 401, 401, 200]
    assert status_with(garra, scoped) == 403
    for path in ("/v1/models", "/metrics", "/api/tags", "/props"):
        assert status_with(garra, None, "GET", path) == 401
    assert [status_with(garra, None, "GET", path) for path in ("/health", "/api/version", "/")] == [200, 200, 200]
    rows = httpx.get(f"{garra.url}/v1/models", headers={"x-api-key": scoped}).json()["data"]
    assert [row["id"] for row in rows] == ["other"]
    asked = {"model": "other", "messages": ASK["messages"]}
    with httpx.Client(base_url=garra.url, headers={"x-api-key": scoped}, timeout=180) as client:
        replies = [client.post("/v1/chat/completions", json=asked) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert 1 <= int(replies[2].headers["Retry-After"]) <= 60
    assert replies[2].json()["error"]["code"] == "rate_limit_exceeded"
    garra.run("keys", "revoke", "one", check=True)
    assert status_with(garra, one) == 401
    assert garra.run("chat", "demo", "-m", "hi").returncode == 0, "the command on the machine needs no key"
    listed = garra.run("keys", "list").stdout
    assert "scoped" in listed
    assert scoped not in listed


def test_what_changes_something_needs_an_administrator_once_there_are_keys(stubbed: Make) -> None:
    garra = stubbed("").up("demo")
    assert httpx.post(f"{garra.url}/models/load", json={"model": "other"}, timeout=180).json() == {"success": True}
    assert httpx.post(f"{garra.url}/models/unload", json={"model": "other"}).status_code == 200
    assert httpx.request("DELETE", f"{garra.url}/api/delete", json={"model": "demo"}).status_code == 403
    plain, boss = key_of(garra, "plain"), key_of(garra, "boss", "--admin")
    for key, status in ((plain, 403), (boss, 200)):
        with httpx.Client(base_url=garra.url, headers={"Authorization": f"Bearer {key}"}, timeout=180) as client:
            assert client.post("/models/load", json={"model": "other"}).status_code == status
            assert client.get("/registry/models").status_code == status
            copied = client.post("/api/copy", json={"source": "demo", "destination": "gpt-4o"})
            assert copied.status_code == status
    with openai.OpenAI(base_url=f"{garra.url}/v1", api_key=plain, max_retries=0) as client:
        assert client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
    assert httpx.get(f"{garra.url}/models/load", headers={"x-api-key": boss}).status_code == 404, (
        "no GET changes anything"
    )


def test_no_listener_for_everybody_without_a_key(stubbed: Make) -> None:
    garra = stubbed("")
    refused = garra.run("up", "demo", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 3
    assert "garra keys create" in refused.stderr
    key = key_of(garra, "one")
    garra.start("demo", "--host", "0.0.0.0")
    eventually(lambda: garra.exited or garra.status_or_none())
    garra.run("load", "demo")
    port = garra.url.rpartition(":")[2]
    url = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert httpx.get(f"{url}/v1/models", headers={"x-api-key": key}).status_code == 200
    garra.run("keys", "revoke", "one", check=True)
    assert httpx.get(f"{url}/v1/models").status_code == 401, "the last key gone: nobody, not everybody"


def test_neither_key_nor_prompt_is_written_down(stubbed: Make) -> None:
    garra = stubbed("", "", 'log_format = "json"').up("demo")
    key = key_of(garra, "one")
    for wrong in (key, "garra-wrong-key-of-somebody"):
        with httpx.Client(base_url=garra.url, headers={"Authorization": f"Bearer {wrong}"}, timeout=180) as client:
            client.post("/v1/chat/completions", json=ASK)
            client.post("/v1/messages", json={**ASK, "max_tokens": 2})
            client.post("/api/chat", json=ASK)
            client.post("/v1/chat/completions", content=json.dumps(ASK)[:-3])
    garra.run("status")
    garra.stop()
    garra.process = None
    written = [path for path in garra.root.rglob("*") if path.is_file()]
    assert len(written) > 2
    for path in written:
        text = path.read_bytes()
        for secret in (key, SECRET, "garra-wrong-key-of-somebody"):
            assert secret.encode() not in text, path


# -- browsers


class Pages(http.server.BaseHTTPRequestHandler):
    """Somebody's page, that calls garra and writes into its title what came of it."""

    target = ""
    """Where garra is."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        script = """
            const told = [];
            async function tried(name, url, options) {
              try { const r = await fetch(url, options); told.push(name + ":" + r.status); }
              catch (e) { told.push(name + ":blocked"); }
            }
            (async () => {
              await tried("get", TARGET + "/v1/models");
              await tried("simple", TARGET + "/v1/chat/completions", {method: "POST", body: BODY});
              await tried("nocors", TARGET + "/models/unload",
                          {method: "POST", mode: "no-cors", body: '{"model":"demo"}'});
              await tried("json", TARGET + "/v1/chat/completions",
                          {method: "POST", body: BODY, headers: {"Content-Type": "application/json"}});
              document.title = told.join(" ");
              document.body.textContent = "DONE " + told.join(" ");
            })();
        """.replace("TARGET", json.dumps(self.target)).replace("BODY", json.dumps(json.dumps(ASK | {"stream": False})))
        page = f"<html><body>waiting<script>{script}</script></body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


@pytest.fixture
def page() -> Iterator[type[Pages]]:
    class Own(Pages):
        pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Own.port = server.server_address[1]  # type: ignore[attr-defined]
    yield Own
    server.shutdown()
    thread.join()
    server.server_close()


def seen(url: str, tmp_path: Path, *flags: str) -> str:
    """What a page has become after its scripts ran."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=8000", "--dump-dom", *flags, url,
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=environment)
    assert "DONE" in done.stdout, done.stdout[-500:] + done.stderr[-1500:]
    return done.stdout.partition("DONE ")[2].partition("<")[0]


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")


@needs_browser
def test_a_page_of_another_origin_reaches_nothing(stubbed: Make, page: type[Pages], tmp_path: Path) -> None:
    garra = stubbed("").up("demo")
    page.target = garra.url
    told = seen(f"http://localhost:{page.port}/", tmp_path)  # type: ignore[attr-defined]
    assert "get:blocked" in told
    assert "json:blocked" in told
    assert "simple:blocked" in told
    assert garra.engine()["phase"] == "ready", "the blind request did nothing either"
    assert garra.report()["requests"].get("complete", 0) == 0


@needs_browser
def test_a_name_that_comes_to_mean_this_machine_reaches_nothing(
    stubbed: Make, page: type[Pages], tmp_path: Path
) -> None:
    """DNS rebinding: the page's own name now resolves to loopback, and its port is garra's: no origin is crossed."""
    garra = stubbed("").up("demo")
    port = int(garra.url.rpartition(":")[2])
    page.target = f"http://evil.example:{port}"
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    told = seen(f"http://evil.example:{page.port}/", tmp_path, rules)  # type: ignore[attr-defined]
    assert "get:blocked" in told
    direct = httpx.get(f"{garra.url}/v1/models", headers={"Host": f"evil.example:{port}"})
    assert direct.status_code == 403
    assert "allowed_hosts" in direct.json()["error"]["message"]
    assert garra.report()["requests"].get("complete", 0) == 0


@needs_browser
def test_a_page_that_is_named_may_call(stubbed: Make, page: type[Pages], tmp_path: Path) -> None:
    origin = f"http://localhost:{page.port}"  # type: ignore[attr-defined]
    garra = stubbed("", "", f'cors_origins = ["{origin}"]').up("demo")
    page.target = garra.url
    told = seen(f"{origin}/", tmp_path)
    assert "get:200" in told
    assert "json:200" in told
    assert "blocked" not in told.replace("nocors:blocked", "")


def test_pages_are_told_what_they_may(stubbed: Make) -> None:
    garra = stubbed("late", "", 'cors_origins = ["https://chat.example"]').up("demo")
    good, bad = {"Origin": "https://chat.example"}, {"Origin": "https://evil.example"}
    asked = {**good, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-stainless-os, evil"}
    preflight = httpx.options(f"{garra.url}/v1/chat/completions", headers=asked)
    assert preflight.status_code == 204
    assert "x-stainless-os" in preflight.headers["Access-Control-Allow-Headers"]
    assert "evil" not in preflight.headers["Access-Control-Allow-Headers"]
    stream = httpx.post(f"{garra.url}/v1/chat/completions", json=ASK, headers=good)
    assert stream.headers["Access-Control-Allow-Origin"] == "https://chat.example"
    assert "[DONE]" in stream.text
    missing = httpx.get(f"{garra.url}/nothing", headers=good)
    assert (missing.status_code, missing.headers["Access-Control-Allow-Origin"]) == (404, "https://chat.example")
    assert httpx.options(f"{garra.url}/v1/models", headers={**asked, **bad}).status_code == 403
    assert "Access-Control-Allow-Origin" not in httpx.get(f"{garra.url}/v1/models").headers
