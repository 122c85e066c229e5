"""Open WebUI itself, started with what `garra connect open-webui` gives: its calls, and a chat as its page does one."""

import json
import subprocess
import sys
import time

import requests

(model,) = sys.argv[1:]
WEB = "http://127.0.0.1:18080"
START_S = 200
"""It imports a deep-learning framework and makes its database first."""


def started(server: subprocess.Popen) -> None:
    before = time.monotonic()
    while time.monotonic() - before < START_S and server.poll() is None:
        try:
            if requests.get(f"{WEB}/health", timeout=2).ok:
                return
        except requests.ConnectionError:
            time.sleep(0.5)
    sys.exit("it did not start")


def words(reply: requests.Response) -> str:
    """A stream as text, in chat chunks."""
    text = ""
    for line in reply.iter_lines():
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", []):
                text += choice["delta"].get("content") or ""
    return text


with open("open-webui.log", "wb") as log:
    server = subprocess.Popen(
        ["open-webui", "serve", "--host", "127.0.0.1", "--port", "18080"], stdout=log, stderr=subprocess.STDOUT
    )
try:
    started(server)
    web = requests.Session()
    token = web.post(f"{WEB}/api/v1/auths/signin", json={"email": "", "password": ""}, timeout=30).json()["token"]
    web.headers["Authorization"] = f"Bearer {token}"
    listed = [one["id"] for one in web.get(f"{WEB}/api/models", timeout=60).json()["data"]]
    name = next(one for one in listed if one.partition(":")[0] == model)
    for path in ("version", "tags", "ps"):
        web.get(f"{WEB}/ollama/api/{path}", timeout=30).raise_for_status()
    shown = web.post(f"{WEB}/ollama/api/show", json={"model": name}, timeout=30)
    shown.raise_for_status()
    ask = {"model": name, "messages": [{"role": "user", "content": "Say hi."}]}
    whole = web.post(f"{WEB}/api/chat/completions", json=ask | {"stream": False}, timeout=200)
    whole.raise_for_status()
    streamed = words(web.post(f"{WEB}/api/chat/completions", json=ask | {"stream": True}, stream=True, timeout=200))
    if not streamed:
        sys.exit("an empty stream")
    print(listed, whole.json()["choices"][0]["message"]["content"], "|", streamed)
finally:
    server.terminate()
    server.wait(30)
