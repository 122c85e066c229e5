"""systemd itself, through its commands: where units go, and what it says of ours."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

from garra.errors import ConfigError
from garra.service.unit import NAME, Scope

_PROPERTIES = (
    "ActiveState SubState UnitFileState MainPID NRestarts StatusText Result ExecMainStatus FragmentPath".split()
)


def unit_file(scope: Scope) -> Path:
    """Where the unit of this scope is kept."""
    if scope == "system":
        return Path("/etc/systemd/system") / NAME
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "systemd" / "user" / NAME


def systemctl(scope: Scope, *words: str, check: bool = True) -> str:
    """What it prints. Raises ConfigError in its own words."""
    done = subprocess.run(
        ["systemctl", *_scope(scope), *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if check and done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip()
        raise ConfigError(f"systemctl {' '.join(words)}: {said}", fix=f"journalctl {' '.join(_journal(scope))} -n 50")
    return done.stdout


def require(scope: Scope) -> None:
    """Raises ConfigError where there is no systemd that would run it."""
    fix = "garra up -d   (in the background, without a manager)"
    if shutil.which("systemctl") is None:
        raise ConfigError("there is no systemd on this machine", fix=fix)
    done = subprocess.run(["systemctl", *_scope(scope), "show-environment"], capture_output=True, check=False)
    if done.returncode != 0:
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ConfigError(f"no systemd of the {scope} answers: {(why or ['it says nothing'])[0]}", fix=fix)


def state(scope: Scope) -> dict[str, Any]:
    """The unit as the manager sees it."""
    told = systemctl(scope, "show", NAME, *(f"--property={name}" for name in _PROPERTIES))
    pairs = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    return {
        "scope": scope,
        "unit": pairs.get("FragmentPath", ""),
        "active": pairs.get("ActiveState", ""),
        "sub": pairs.get("SubState", ""),
        "enabled": pairs.get("UnitFileState", ""),
        "pid": int(pairs.get("MainPID") or 0) or None,
        "restarts": int(pairs.get("NRestarts") or 0),
        "status": pairs.get("StatusText", ""),
        "result": pairs.get("Result", ""),
        "exit_status": int(pairs.get("ExecMainStatus") or 0),
    }


def journal(scope: Scope, lines: int, *, follow: bool) -> list[str]:
    """The command that shows the service's log."""
    return ["journalctl", *_journal(scope), "-n", str(lines), *(["-f"] if follow else ["--no-pager"])]


def home_of(user: str) -> Path:
    """Raises ConfigError for a user there is not."""
    try:
        return Path(pwd.getpwnam(user).pw_dir)
    except KeyError:
        raise ConfigError(f'there is no user "{user}"', fix="garra service install --system --run-as USER") from None


def users_have_namespaces() -> bool:
    """Whether a user's service may have its own view of the file system."""
    tool = shutil.which("unshare")
    if tool is None:
        return False
    done = subprocess.run([tool, "--user", "--map-root-user", "--mount", "true"], capture_output=True, check=False)
    return done.returncode == 0


def _scope(scope: Scope) -> list[str]:
    return ["--user"] if scope == "user" else []


def _journal(scope: Scope) -> list[str]:
    return [*_scope(scope), "-u", NAME]
