"""The wheel alone, in an empty environment and an empty folder: it serves, and everything it needs travels in it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import Garra, eventually

ROOT = Path(__file__).parents[2]


class Installed(Garra):
    """Runs the `garra` of another environment."""

    def __init__(self, program: Path) -> None:
        super().__init__()
        self.program = program
        self.env = {key: value for key, value in self.env.items() if not key.startswith("PYTHON")}

    def run(self, *words: str, check: bool = False, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), *words]
        return subprocess.run(
            command, env=self.env, cwd=self.root, capture_output=True, text=True, check=check, timeout=timeout
        )

    def start(self, *words: str, port: int = 0) -> Garra:
        command = [str(self.program), "up", *words, "--port", str(port)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, env=self.env, cwd=self.root, stdout=output, stderr=output)
        return self


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    """`garra`, installed from the wheel with what the package index has."""
    folder = tmp_path_factory.mktemp("wheel")

    def pip(python: Path, *words: str) -> None:
        command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
        subprocess.run(command, check=True, capture_output=True, cwd=folder, timeout=600)

    pip(Path(sys.executable), "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT))
    (wheel,) = folder.glob("garra-*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    pip(folder / "env" / "bin" / "python", "install", "-c", str(constraints(folder)), str(wheel))
    return folder / "env" / "bin" / "garra"


def constraints(folder: Path) -> Path:
    """The locked versions, without their hashes: what was tested is what is installed."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = [line.split(" \\")[0].split(" ;")[0] for line in lines if line and line[0].isalpha()]
    file = folder / "constraints.txt"
    file.write_text("\n".join(pinned) + "\n")
    return file


@pytest.fixture
def installed(program: Path) -> Iterator[Installed]:
    one = Installed(program)
    yield one
    one.close()


@pytest.mark.timeout(600)
def test_the_wheel_does_the_main_job(installed: Installed) -> None:
    would = installed.run("engine", "build", "--dry-run", check=True).stdout
    assert "cmake" in would, "the pin travels in it"
    assert installed.run("engine", "build", "--if-missing").returncode == 0, "as do the patches"
    shown = json.loads(installed.run("config", "show", "--json", check=True).stdout)
    assert "turbo_4b" in json.dumps(shown), "the profiles do, too"
    installed.up("demo")
    with httpx.Client(base_url=installed.url, timeout=180) as client:
        ask = {"model": "demo", "messages": [{"role": "user", "content": "Say hi."}], "stream": True}
        assert "data: [DONE]" in client.post("/v1/chat/completions", json=ask).text
        assert client.get("/", headers={"Accept": "text/html"}).text.startswith("<!doctype html>")
        assert client.get("/web/main.js").status_code == 200
    said = installed.run("chat", "demo", "-m", "Say hello.")
    assert (said.returncode, bool(said.stdout.strip())) == (0, True)
    assert "MEMORY" in installed.run("status").stdout
    assert installed.run("down").returncode == 0
    eventually(lambda: installed.exited)
