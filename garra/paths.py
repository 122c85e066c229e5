"""Where things live: XDG folders, the private runtime folder, and the files that ship with garra."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from platformdirs import PlatformDirs

from garra.errors import ConfigError

_MAX_SOCKET_PATH = 107  # bytes: sun_path on Linux, with its final zero
_SESSIONS = "/run/user"
_SERVICE = Path("/run/garra")
_DIRS = PlatformDirs("garra", appauthor=False)


def shipped(name: str) -> Path:
    """A file or folder that ships with garra: from the checkout first, else from the wheel's `garra/data/`."""
    package = Path(__file__).resolve().parent
    checkout = package.parent
    inside = {"llama.cpp": "vendor/llama.cpp"}.get(name, name)
    if (checkout / "pyproject.toml").is_file() and (checkout / inside).exists():
        return checkout / inside
    return package / "data" / name


def config_dir() -> Path:
    return Path(_DIRS.user_config_dir)


def user_profiles() -> Path:
    return config_dir() / "profiles.toml"


def managed_settings() -> Path:
    """The part of the settings that commands write."""
    return config_dir() / "managed.toml"


def data_dir() -> Path:
    return Path(_DIRS.user_data_dir)


def state_dir() -> Path:
    return Path(_DIRS.user_state_dir)


def cache_dir() -> Path:
    """What can be made again at any time."""
    return Path(_DIRS.user_cache_dir)


def engines_dir() -> Path:
    return data_dir() / "engines"


def models_dir() -> Path:
    return data_dir() / "models"


def engine_log(profile: str) -> Path:
    return state_dir() / "logs" / f"{profile}.log"


def server_log() -> Path:
    return state_dir() / "logs" / "garra.log"


def runtime_dir() -> Path:
    """The folder of sockets, lock and run files; made if need be, ours alone (0700) or a ConfigError."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given == f"{_SESSIONS}/{os.getuid()}" and os.access(control_socket(_SERVICE), os.W_OK):
        folder = _SERVICE  # this user's garra is a service of the machine: their commands mean that one
    elif given:
        folder = Path(given) / "garra"
    elif "RUNTIME_DIRECTORY" in os.environ:  # a systemd service with RuntimeDirectory=garra
        folder = Path(os.environ["RUNTIME_DIRECTORY"].split(":")[0])
    elif os.access(_SERVICE, os.W_OK):
        folder = _SERVICE
    else:
        folder = Path(f"/tmp/garra-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise ConfigError(
            f"cannot use {folder}: it is not a folder of this user", fix="set XDG_RUNTIME_DIR to a folder of your own"
        )
    if stat.S_IMODE(seen.st_mode) != 0o700:
        folder.chmod(0o700)
    longest = folder / "engines" / "profile-name-0000000000.sock"
    if len(os.fsencode(longest)) > _MAX_SOCKET_PATH:
        raise ConfigError(
            f"cannot use {folder}: a socket's path may have {_MAX_SOCKET_PATH} bytes",
            fix="set XDG_RUNTIME_DIR to a shorter folder",
        )
    return folder


def control_socket(runtime: Path) -> Path:
    return runtime / "control.sock"


def state_db() -> Path:
    """What must last: see garra/store.py."""
    return state_dir() / "state.db"
