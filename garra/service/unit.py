"""The text of the systemd unit. Pure.

Sources: systemd.service(5), systemd.exec(5), systemd.resource-control(5), sd_notify(3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

NAME = "garra.service"
WATCHDOG_S = 30
"""After so long without a sign of health it is killed and started again."""
_STOP_MARGIN_S = 30.0
"""Beyond the drain: for engines that take their time to end."""
_HOPELESS = "2 3 4 5 7"
"""Exit codes of usage, configuration, model, build and address: starting again changes nothing."""
_CALLS = ("@system-service", "~@privileged", "capset")
"""The last for setpriv(1), which ties engines to garra's life; it can only give up what it has."""
_SOCKETS = "AF_UNIX AF_INET AF_INET6 AF_NETLINK"

Scope = Literal["user", "system"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the unit is to be."""

    scope: Scope
    command: Sequence[str]
    drain_s: float
    writable: Sequence[str]
    """Folders it writes to; everything else is read-only to it."""
    read: Sequence[str] = ()
    """Where the program, its libraries and its model are."""
    user: str = ""
    """Whose service it is, in the system scope."""
    gpus: Sequence[str] = ()
    """Vendors of the GPUs engines compute on; empty: on the CPU."""
    namespaces: bool = True
    """Whether services of this scope may have a view of the file system of their own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_high: str = ""


def text(wish: Wish) -> str:
    """The whole file."""
    sections = {"Unit": _unit(wish), "Service": _service(wish), "Install": [("WantedBy", _target(wish))]}
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key}={value}\n" if key else f"# {value}\n" for key, value in lines)
        for name, lines in sections.items()
    )


Line = tuple[str, str]
"""Key and value; without a key: a comment."""


def _unit(wish: Wish) -> list[Line]:
    after = "network-online.target" if wish.scope == "system" else "default.target"
    lines = [
        ("Description", "garra: local LLM server"),
        ("Documentation", "man:systemd.service(5)"),
    ]
    return lines + ([("Wants", after), ("After", after)] if wish.scope == "system" else [])


def _service(wish: Wish) -> list[Line]:
    return [
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("ExecStart", " ".join(map(_word, wish.command))),
        ("ExecReload", "/bin/kill -HUP $MAINPID"),
        *([("User", wish.user)] if wish.scope == "system" else []),
        *(("Environment", _word(f"{name}={value}")) for name, value in sorted(wish.environment.items())),
        ("", "ready once a model serves; garra itself gives up on a load that makes no progress"),
        ("TimeoutStartSec", "infinity"),
        ("WatchdogSec", str(WATCHDOG_S)),
        ("Restart", "on-failure"),
        ("RestartSec", "5"),
        ("RestartPreventExitStatus", _HOPELESS),
        ("", "TERM goes to garra alone, which lets running answers end; what is left after that is killed"),
        ("KillMode", "mixed"),
        ("TimeoutStopSec", f"{wish.drain_s + _STOP_MARGIN_S:g}"),
        ("", "an engine the kernel kills for memory comes back smaller: that ends no service"),
        ("OOMPolicy", "continue"),
        ("LimitNOFILE", "65536"),
        *([("MemoryHigh", wish.memory_high)] if wish.memory_high else []),
        *_hardening(wish),
    ]


def _hardening(wish: Wish) -> list[Line]:
    lines = [
        ("UMask", "0077"),
        ("NoNewPrivileges", "yes"),
        ("LockPersonality", "yes"),
        ("RestrictRealtime", "yes"),
        ("RestrictSUIDSGID", "yes"),
        ("RestrictNamespaces", "yes"),
        ("RestrictAddressFamilies", _SOCKETS),
        ("SystemCallArchitectures", "native"),
        *(("SystemCallFilter", calls) for calls in _CALLS),
        ("SystemCallErrorNumber", "EPERM"),
    ]
    if not wish.gpus:
        lines.append(("MemoryDenyWriteExecute", "yes"))
    else:
        lines.append(("", "no MemoryDenyWriteExecute: GPU drivers compile kernels at run time"))
    if wish.scope == "system":
        lines += [("CapabilityBoundingSet", ""), ("AmbientCapabilities", ""), ("RemoveIPC", "yes")]
        lines += [("RuntimeDirectory", "garra"), ("RuntimeDirectoryMode", "0700"), *_devices(wish.gpus)]
    if wish.namespaces:
        lines += _own_view(wish)
    else:
        lines.append(("", "no ProtectSystem: this kernel gives users no namespaces of their own"))
    return lines


def _own_view(wish: Wish) -> list[Line]:
    kernel = "Tunables Modules Logs".split() if wish.scope == "system" else []  # a user cannot touch these anyway
    kept = [f"ProtectKernel{what}" for what in kernel]
    kept += ["ProtectControlGroups", "ProtectClock", "ProtectHostname"] if wish.scope == "system" else []
    return [
        ("ProtectSystem", "strict"),
        ("ProtectHome", "read-only"),
        *([] if _in_tmp((*wish.writable, *wish.read)) else [("PrivateTmp", "yes")]),
        *((name, "yes") for name in kept),
        ("ReadWritePaths", " ".join(_word(path) for path in wish.writable)),
    ]


def _in_tmp(folders: Sequence[str]) -> bool:
    """Whether it needs something where a /tmp of its own would hide it."""
    return any(folder.startswith(("/tmp/", "/var/tmp/")) for folder in folders)


def _devices(gpus: Sequence[str]) -> list[Line]:
    """No device but the GPUs, where there are any."""
    if not gpus:
        return [("PrivateDevices", "yes")]
    lines = [("DevicePolicy", "closed"), ("DeviceAllow", "char-drm rw")]
    lines += [("DeviceAllow", "char-nvidia* rw")] if "nvidia" in gpus else []
    return lines + ([("DeviceAllow", "/dev/kfd rw")] if "amd" in gpus else [])


def _target(wish: Wish) -> str:
    return "multi-user.target" if wish.scope == "system" else "default.target"


def _word(text: str) -> str:
    """One word, as systemd reads it: quoted if need be, without its own specifiers and variables."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if not text or any(character in text for character in " \t'\";\\") else text
