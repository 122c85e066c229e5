"""Agents and frameworks against garra, each configured by `garra connect`, without any network but loopback.

    python -m tests.clients.agents [NAME ...] [--keep FOLDER]

Installs each from its registry into a scratch folder, starts a garra in a network namespace that has loopback alone,
and lets each answer one prompt there: of the demo model, and of a tiny one of noise with a long context, a picky
template and tools. It tells what every one did; the exit status is 1 when one failed. Needs root, for the namespace.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import shapes
from tests.engine.test_surface import PICKY
from tests.support import Garra
from tests.tiny_gguf import write

HERE = Path(__file__).resolve().parent
NAMESPACE = f"garra-clients-{os.getpid() % 10_000}"
LIMIT_S = 240
BYTES_64K = 200_000
"""The tiny model's tokens are single bytes: what real ones say in 64k takes three times as many."""
END_OF_TURN = 511
"""The tiny model's last token."""
FEW_WORDS = json.dumps([["a", 1e6], ["b", 1e6], [END_OF_TURN, 7e5]])
"""Hot noise that knows two letters and its end: short answers, as of a real model, without any tool."""


@dataclass(frozen=True)
class Client:
    """One program."""

    name: str
    package: str
    """Where from, and what to install; with a Node.js of its own where it wants a newer one."""
    connect: str | None = None
    """Its name for `garra connect`; None: it is a library."""
    command: str = ""
    """Empty: the script in this folder that has its name."""
    environment: dict[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ("demo", "picky")


AGENTS = (
    Client("opencode", "npm:opencode-ai@1.18.33", "opencode", 'opencode run --title t "Say hi"', {
        "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }),
    Client("cline", "npm:cline@3.0.65", "cline", 'cline "Say hi"', {"CLINE_TELEMETRY_DISABLED": "1"}),
    Client("continue", "npm:@continuedev/cli@1.5.47", "continue", 'cn -p "Say hi" --config ~/.continue/config.yaml'),
    Client("codex", "npm:@openai/codex@0.171.0", "codex", 'codex exec --skip-git-repo-check "Say hi" </dev/null'),
    Client("claude-code", "npm:@anthropic-ai/claude-code@2.1.197", "claude-code", 'claude -p "Say hi" </dev/null'),
    Client("qwen-code", "npm:@qwen-code/qwen-code@0.15.10", "qwen-code",
           'qwen --auth-type openai -p "Say hi" </dev/null', models=("picky",)),
    Client("claude-code-new", "npm:node@22 @anthropic-ai/claude-code@2.1.332", "claude-code",
           'claude -p "Say hi" </dev/null', models=("picky",)),
    Client("qwen-code-new", "npm:node@22 @qwen-code/qwen-code@0.24.4", "qwen-code",
           'qwen --auth-type openai -p "Say hi" </dev/null', models=("picky",)),
    Client("sdks-new", "npm:node@22 openai@7.59.0 ai@7.0.173 @ai-sdk/openai-compatible@3.0.92 "
           "@anthropic-ai/sdk@1.14.0 ollama@0.6.4",
           command='cp "$SCRIPTS/sdks.mjs" "$PLACE" && node --version && node "$PLACE/sdks.mjs" "$URL" "$MODEL"'),
    Client("aider", "pip:aider-chat==0.86.2", "aider",
           'aider --no-git --yes-always --no-check-update --no-show-model-warnings --message "Say hi"'),
    Client("litellm", "pip:litellm==1.110.2", environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"}),
    Client("langchain", "pip:langchain-openai==1.7.4"),
    Client("open-webui", "pip:open-webui==0.12.4", "open-webui", 'python "$SCRIPTS/open_webui.py" "$MODEL"', {
        "WEBUI_AUTH": "False", "OFFLINE_MODE": "True", "RAG_EMBEDDING_ENGINE": "ollama", "DATA_DIR": "data",
    }),
    Client("pydantic-ai", "pip:pydantic-ai-slim[openai]==2.62.0"),
    Client("llama-index", "pip:llama-index-llms-openai-like==0.8.1"),
)  # fmt: skip


@contextlib.contextmanager
def namespace() -> Iterator[None]:
    """A network of its own that has loopback alone."""
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    try:
        subprocess.run(["ip", "-n", NAMESPACE, "link", "set", "lo", "up"], check=True)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=False)


class Inside(Garra):
    """A garra in the namespace."""

    def start(self, *words: str, port: int = 0) -> Garra:
        command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-m", "garra", "up", *words, "--port", str(port)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, env=self.env, stdout=output, stderr=output)
        return self


def install(client: Client, folder: Path) -> Path:
    """The folder of its programs."""
    kind, _, package = client.package.partition(":")
    place = folder / client.name
    if kind == "npm":
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), *package.split()]
        programs = place / "node_modules" / ".bin"
    else:
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        command = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", package]
        programs = place / "bin"
    if not (place / "installed").exists():
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, check=True, capture_output=True, timeout=900)
        (place / "installed").touch()
    return programs


def ask(client: Client, programs: Path, garra: Garra, model: str, folder: Path) -> dict[str, Any]:
    """One prompt through one program: what it did."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=folder))
    kept = {key: os.environ[key] for key in ("LANG", "TERM") if key in os.environ}
    env = {**kept, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", **client.environment}
    env |= {"SCRIPTS": str(HERE), "PLACE": str(folder / client.name), "URL": garra.url, "MODEL": model}
    before = garra.report(model)["requests"].get("complete", 0)
    began = time.monotonic()
    if client.connect is not None:
        words = [sys.executable, "-m", "garra", "connect", client.connect, "--model", model]
        asking = {**garra.env, "HOME": str(home)}
        subprocess.run([*words, "--write", "--yes"], env=asking, check=True, capture_output=True)
        setup = json.loads(subprocess.run([*words, "--json"], env=asking, check=True, capture_output=True).stdout)
        env |= setup["environment"] or {}
        if client.connect == "cline":
            run_in(setup["command"], home, env)
    script = HERE / f"{client.name.replace('-', '_')}.py"
    own = shlex.join([str(programs / "python"), str(script), garra.url, model])
    done = run_in(client.command or own, home, env)
    n_asked = garra.report(model)["requests"].get("complete", 0) - before
    said = done.stdout.strip()[-160:]
    good = done.returncode == 0 and n_asked > 0 and bool(said)
    told = {"client": client.package, "model": model, "ok": good, "exit": done.returncode, "answers": n_asked}
    told |= {"seconds": round(time.monotonic() - began, 1), "said": said}
    return told if good else told | {"error": done.stderr.strip()[-400:]}


def run_in(command: str, home: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A shell command in the namespace, ended with all it started."""
    words = ["ip", "netns", "exec", NAMESPACE, "timeout", "-k", "5", str(LIMIT_S), "bash", "-c", command]
    done = subprocess.run(
        words,
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
        stdin=subprocess.DEVNULL,
    )
    subprocess.run(["pkill", "-f", str(home)], check=False)  # cline leaves a helper behind
    return done


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", help=", ".join(client.name for client in AGENTS))
    options.add_argument("--keep", type=Path, help="install here, and use what is there")
    asked = options.parse_args()
    chosen = [client for client in AGENTS if not asked.names or client.name in asked.names]
    folder = (asked.keep or Path(tempfile.mkdtemp(prefix="clients-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    picky = write(folder / "picky.gguf", shapes.llama(n_ctx=262_144, kind="F32"), seed=3, template=PICKY)
    garra = Inside().configure(f"""
        [profiles.demo]
        body.force = {{ logit_bias = [[2, 4]] }}
        [profiles.picky]
        model = "file:{picky}"
        context = {BYTES_64K}
        slots = 2
        threads = 1
        body.force = {{ temperature = 1e5, top_k = 0, top_p = 1, min_p = 0, logit_bias = {FEW_WORDS} }}
    """)
    failed = 0
    try:
        with namespace():
            garra.up("demo")
            garra.run("load", "picky", check=True)
            for client in chosen:
                try:
                    programs = install(client, folder)
                except subprocess.SubprocessError as error:
                    print(json.dumps({"client": client.package, "ok": False, "error": f"not installed: {error}"}))
                    failed += 1
                    continue
                for model in client.models:
                    told = ask(client, programs, garra, model, folder)
                    failed += not told["ok"]
                    print(json.dumps(told), flush=True)
            garra.stop()
    finally:
        garra.close()
        if asked.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
