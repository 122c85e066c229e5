"""The model hub through its own client: which files a repository has, at which commit, and what to search for.

Blocking, and heavy to import: for the worker's threads alone. Tokens, mirrors (HF_ENDPOINT), proxies, offline mode and
the places of things are the client's business; its errors become garra's here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import huggingface_hub
import msgspec
from huggingface_hub import HfApi, constants, errors
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

from garra import __version__
from garra.errors import AccessDenied, DownloadFailed, GarraError, NotOffered, Refused, Stopped, brief
from garra.registry.names import RemoteFile, is_plain
from garra.registry.transfer import Transfer, retry_after_s

_TRIES = 5
_TRIES_UNANSWERED = 3
"""Fewer: without a network a person waits for all of them."""
_LONGEST_WAIT_S = 30.0
_MOST_FILES = 20_000
_MOST_BYTES = 1 << 50

_HTTP_ERROR: type[Exception] = errors.HfHubHTTPError.__bases__[0]
"""Of the HTTP library the client uses, whichever that is: broken connections and time limits too."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemoteRepo:
    """A repository at one commit."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]
    licence: str = ""
    base_model: str = ""
    downloads: int = 0
    gated: bool = False

    @property
    def publisher(self) -> str:
        return self.repo.split("/")[0]


class _Sibling(msgspec.Struct):
    """What a file's entry must look like; the hub's client does not check."""

    rfilename: str
    size: int | None = None
    blob_id: str | None = None
    lfs: dict[str, Any] | None = None


class Hub:
    """The hub as the environment says it is. `stop` ends whatever waits."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._api = HfApi(library_name="garra", library_version=__version__)
        self._headers = build_hf_headers(library_name="garra", library_version=__version__)

    def repo(self, name: str) -> RemoteRepo:
        """The repository at its newest commit. Raises DownloadFailed, AccessDenied, NotOffered, Refused."""
        info = self._ask(name, lambda: self._api.model_info(name, files_metadata=True, timeout=_patience_s()))
        commit = info.sha or ""
        files = info.siblings or []
        if not _is_hex(commit, 40) or len(files) > _MOST_FILES:
            raise Refused(f"the hub's answer about {name} makes no sense: commit {commit[:50]!r}, {len(files)} files")
        card = info.card_data
        return RemoteRepo(
            name,
            commit,
            tuple(file for one in files if (file := _file(one)) is not None),
            licence=_text(_of(card, "license_name") or _of(card, "license") or _tag(info.tags, "license:")),
            base_model=_text(_of(card, "base_model") or _tag(info.tags, "base_model:")),
            downloads=info.downloads if isinstance(info.downloads, int) else 0,
            gated=bool(info.gated),
        )

    def search(self, query: str, limit: int) -> list[str]:
        """Names of repositories with GGUF files, the most downloaded first."""
        asked = {"search": query, "filter": "gguf", "sort": "downloads", "direction": "-1", "limit": str(limit)}

        def ask() -> Any:  # not the client's `list_models`: without a network that tries for half a minute
            answer = get_session().get(
                f"{self.endpoint}/api/models", params=asked, headers=self._headers, timeout=_patience_s()
            )
            hf_raise_for_status(answer)
            return answer.json()

        told = self._ask(None, ask)
        found = [one.get("id") for one in told if isinstance(one, dict)] if isinstance(told, list) else []
        return [name for name in found if isinstance(name, str) and is_plain(name) and name.count("/") == 1][:limit]

    def url(self, repo: RemoteRepo, file: RemoteFile) -> str:
        return huggingface_hub.hf_hub_url(repo.repo, file.path, revision=repo.commit, endpoint=self.endpoint)

    @property
    def endpoint(self) -> str:
        return constants.ENDPOINT

    def transfer(self) -> Transfer:
        """What reads files from this hub. Raises DownloadFailed in offline mode."""
        if constants.is_offline_mode():
            raise _offline("a file of it")
        return Transfer(self._headers, self.endpoint, self._stop, stall_s=_patience_s())

    def _ask(self, repo: str | None, call: Callable[[], T]) -> T:
        """The answer; rate limits, 5xx and broken connections are tried again."""
        n_answers = n_silences = 0
        while True:
            try:
                return call()
            except errors.OfflineModeIsEnabled:
                raise _offline(repo) from None
            except (_HTTP_ERROR, OSError) as error:
                answered = getattr(error, "response", None) is not None
                n_answers, n_silences = n_answers + answered, n_silences + (not answered)
                after_s = _worth_another(error)
                if after_s is None or n_answers >= _TRIES or n_silences >= _TRIES_UNANSWERED:
                    raise _told(error, repo, self.endpoint) from None
                if self._stop.wait(min(_LONGEST_WAIT_S, after_s or 0.4 * 2 ** (n_answers + n_silences))):
                    raise Stopped("it was stopped") from None
            except Exception as error:
                if isinstance(error, GarraError):
                    raise
                raise DownloadFailed(
                    f"{self.endpoint} does not answer like a model hub: {brief(error)}", fix="check HF_ENDPOINT"
                ) from None


def _worth_another(error: Exception) -> float | None:
    """Seconds to wait before another try, 0 for the usual ones; None: it would end the same way."""
    response = getattr(error, "response", None)
    if response is None:
        return 0.0
    if response.status_code in (408, 425, 429) or response.status_code >= 500:
        return retry_after_s(response.headers.get("Retry-After")) or 0.0
    return None


def _told(error: Exception, repo: str | None, endpoint: str) -> GarraError:
    """The hub client's error as one of ours, with a fix for each kind."""
    what = repo or "the search"
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else 0
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return AccessDenied(
            f"{what} is gated: its publisher wants its terms accepted first",
            fix=f"open {endpoint}/{repo}, accept the terms, then set HF_TOKEN (or: hf auth login)",
        )
    if isinstance(error, errors.DisabledRepoError):
        return AccessDenied(f"{what} was disabled by the hub", fix="garra models search NAME finds others")
    if status == 401 and huggingface_hub.get_token() is None:
        return AccessDenied(
            f"there is no {what} for everybody: it does not exist, or it is private",
            fix="check its name; for a private one set HF_TOKEN (or: hf auth login)",
        )
    if isinstance(error, errors.RepositoryNotFoundError) or status == 404:
        return NotOffered(
            f"there is no {what} on the hub",
            fix="check its name, or set HF_TOKEN for a private one; garra models search",
        )
    if status == 401:
        return AccessDenied(f"the hub does not accept the token, asked for {what}", fix="renew HF_TOKEN, or unset it")
    if status == 429:
        return DownloadFailed(
            f"the hub limits how often it is asked ({what})", fix="wait a few minutes, or set HF_TOKEN"
        )
    if status:
        return DownloadFailed(f"the hub answers with {status}, asked for {what}", fix="try again later")
    network = "check the network (HF_ENDPOINT, HF_TOKEN, proxies)"
    if repo is None:
        return DownloadFailed(f"cannot reach the model hub: {brief(error)}", fix=network)
    return DownloadFailed(
        f"cannot reach {repo} on the model hub: {brief(error)}",
        fix=f'{network}, or set model = "file:/path.gguf" in the profile',
    )


def _offline(repo: str | None) -> DownloadFailed:
    lacking = f"{repo} is not on this machine" if repo is not None else "the model hub cannot be searched"
    return DownloadFailed(
        f"{lacking}: HF_HUB_OFFLINE is set, and nothing is asked of the network",
        fix="unset HF_HUB_OFFLINE, or bring the model with a bundle: garra bundle --help",
    )


def _file(sibling: Any) -> RemoteFile | None:
    """A usable entry, or None: a name that is no plain path or a hash that is none is not offered at all."""
    try:
        entry = msgspec.convert(
            {"rfilename": sibling.rfilename, "size": sibling.size, "blob_id": sibling.blob_id, "lfs": sibling.lfs},
            _Sibling,
        )
    except msgspec.ValidationError:
        return None
    size = entry.size if entry.size is not None else -1
    sha256 = (entry.lfs or {}).get("sha256")
    if not is_plain(entry.rfilename) or not 0 <= size < _MOST_BYTES:
        return None
    if isinstance(sha256, str) and _is_hex(sha256, 64):
        return RemoteFile(entry.rfilename, size, sha256=sha256)
    if sha256 is None and entry.blob_id is not None and _is_hex(entry.blob_id, 40):
        return RemoteFile(entry.rfilename, size, git_oid=entry.blob_id)
    return None


def _patience_s() -> float:
    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and all(letter in "0123456789abcdef" for letter in text)


def _of(card: object, key: str) -> Any:
    """An entry of a model card, which may be anything."""
    return getattr(card, key, None)


def _tag(tags: Any, prefix: str) -> str:
    found = [
        tag
        for tag in (tags if isinstance(tags, list) else ())
        if isinstance(tag, str) and tag.startswith(prefix) and tag.count(":") == 1
    ]
    return found[0].removeprefix(prefix) if found else ""


def _text(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else value
    return first[:200] if isinstance(first, str) and first.isprintable() else ""
