"""One file from a server to disk, whatever happens in between: ranges, a hash of every byte, patience, backoff.

The hub's own client throws a partial file away when its process ends and checks only the size; so the bytes are read
here, and everything else about the hub stays with it. Blocking: for a thread of the worker.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from garra.errors import AccessDenied, BadModel, DownloadFailed, NotOffered, Refused, Stopped, brief
from garra.registry import disk, hashing
from garra.registry.names import RemoteFile

MAX_FAILURES = 6
"""In a row, each with less than a thousandth of the file."""
_LONGEST_BACKOFF_S = 30.0
_LONGEST_RETRY_AFTER_S = 120.0
_SLOWEST_BYTES_PER_S = 1024
_MOST_REDIRECTS = 5
_MAGIC = b"GGUF"


class _Again(Exception):
    """Not this time: another try may do."""

    def __init__(self, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.after_s = after_s


class _Partial:
    """What has come so far, and its hash."""

    def __init__(self, path: Path, file: RemoteFile) -> None:
        self.path = path
        self._file = file
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()  # nothing of ours: what it points to is not to be written
        self._out = path.open("ab")
        self.n_bytes = path.stat().st_size
        self.restarted = False
        if self.n_bytes > file.n_bytes:
            self.restart()
        else:
            self._rehash()

    def _rehash(self) -> None:
        self._hash = hashing.of_blob(self._file)
        with self.path.open("rb") as there:
            while chunk := there.read(hashing.CHUNK):
                hashing.feed(self._hash, chunk)

    def restart(self) -> None:
        self._out.truncate(0)
        self.n_bytes = 0
        self._rehash()

    def append(self, chunk: bytes) -> None:
        """Raises DownloadFailed where the disk does not take it."""
        if self.n_bytes == 0 and chunk and not _MAGIC.startswith(chunk[:4]) and not chunk.startswith(_MAGIC):
            raise BadModel(
                f"{self._file.path} is no GGUF file: it begins with {chunk[:8]!r}",
                fix="check the repository in a browser; nothing was kept",
            )
        try:
            self._out.write(chunk)
            self._out.flush()
        except OSError as error:
            self._out.truncate(self.n_bytes)
            raise disk.refused(error, self.path, self._file.n_bytes - self.n_bytes) from None
        hashing.feed(self._hash, chunk)
        self.n_bytes += len(chunk)

    @property
    def whole(self) -> bool:
        return self.n_bytes == self._file.n_bytes

    @property
    def right(self) -> bool:
        return self._hash.hexdigest() == self._file.blob

    def close(self) -> None:
        self._out.close()


class Transfer:
    """Fetches files of one repository."""

    def __init__(self, headers: dict[str, str], endpoint: str, stop: threading.Event, *, stall_s: float) -> None:
        self._headers = headers
        self._origin = _origin(httpx.URL(endpoint))
        self._stop = stop
        self._stall_s = stall_s
        """So long without a byte, or at less than a kilobyte a second: the connection is given up."""
        self._client = httpx.Client(follow_redirects=False, timeout=httpx.Timeout(stall_s, connect=min(10.0, stall_s)))

    def close(self) -> None:
        self._client.close()

    def fetch(
        self, url: str, file: RemoteFile, path: Path, moved: Callable[[int], None], *, until: int | None = None
    ) -> None:
        """The whole file at `path`, its hash as the hub says; or its first `until` bytes, whose hash nobody knows.

        Raises DownloadFailed, AccessDenied, NotOffered, BadModel, Stopped; what has come stays for the next try, unless
        it is wrong.
        """
        partial = _Partial(path, file)
        try:
            self._fill(url, file, partial, moved, min(until or file.n_bytes, file.n_bytes))
            if until is None and not partial.right:  # bytes of an earlier try may be to blame
                partial.restart()
                moved(0)
                self._fill(url, file, partial, moved, file.n_bytes)
            if until is None and not partial.right:
                path.unlink(missing_ok=True)
                raise BadModel(
                    f"{file.path} came twice with another checksum than the hub promises: nothing was kept",
                    fix="try again later, or from another mirror (HF_ENDPOINT)",
                )
        except BadModel:
            path.unlink(missing_ok=True)
            raise
        finally:
            partial.close()

    def _fill(self, url: str, file: RemoteFile, partial: _Partial, moved: Callable[[int], None], goal: int) -> None:
        failures = 0
        while partial.n_bytes < goal:
            before = partial.n_bytes
            try:
                self._read(url, file, partial, moved, goal)
            except (_Again, httpx.TransportError) as error:
                failures = 1 if partial.n_bytes > before + file.n_bytes // 1000 else failures + 1
                if failures >= MAX_FAILURES:
                    raise DownloadFailed(
                        f"cannot download {file.path}: {brief(error)}, {failures} times in a row "
                        f"({partial.n_bytes / 1e6:.0f} of {file.n_bytes / 1e6:.0f} MB are here)",
                        fix="the same command again: it goes on where it stopped",
                    ) from None
                self._rest(failures, error.after_s if isinstance(error, _Again) else None)

    def _rest(self, failures: int, after_s: float | None) -> None:
        backoff_s = min(_LONGEST_BACKOFF_S, 0.5 * 2 ** (failures - 1)) * random.uniform(0.7, 1.3)
        if after_s is not None:
            backoff_s = min(after_s, _LONGEST_RETRY_AFTER_S)
        if self._stop.wait(backoff_s):
            raise Stopped("the download was stopped", fix="ask for it again: it goes on where it stopped")

    def _read(self, url: str, file: RemoteFile, partial: _Partial, moved: Callable[[int], None], goal: int) -> None:
        """One answer's bytes, until it ends or `goal` is there; each piece is kept as it comes: it may be the last."""
        with contextlib.closing(self._open(url, file, partial.n_bytes)) as answer:
            self._judge(answer, file, partial)
            began, came = time.monotonic(), 0
            for chunk in answer.iter_raw():
                if self._stop.is_set():
                    raise Stopped("the download was stopped", fix="ask for it again: it goes on where it stopped")
                partial.append(chunk[: file.n_bytes - partial.n_bytes])
                moved(partial.n_bytes)
                if partial.n_bytes >= goal:
                    return
                came += len(chunk)
                if time.monotonic() - began > self._stall_s:
                    if came < _SLOWEST_BYTES_PER_S * self._stall_s:
                        raise _Again(f"only {came} bytes came in {self._stall_s:.0f} s")
                    began, came = time.monotonic(), 0
        raise _Again("the connection ended early")

    def _open(self, url: str, file: RemoteFile, begin: int) -> httpx.Response:
        """The answer to a request for the bytes from `begin` on, redirects followed; the token stays with the hub."""
        target = httpx.URL(url)
        for _ in range(_MOST_REDIRECTS):
            headers = dict(self._headers) if _origin(target) == self._origin else {}
            headers |= {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begin}-"} if begin else {})
            answer = self._client.send(self._client.build_request("GET", target, headers=headers), stream=True)
            if not answer.has_redirect_location:
                return answer
            answer.close()
            after = target.join(answer.headers["Location"])
            if after.scheme not in ("http", "https") or (target.scheme == "https" and after.scheme == "http"):
                raise Refused(f"the hub sends the download of {file.path} to {after.scheme}:, which is not safe")
            target = after
        raise DownloadFailed(f"cannot download {file.path}: it is redirected again and again")

    def _judge(self, answer: httpx.Response, file: RemoteFile, partial: _Partial) -> None:
        """Whether these are the bytes that were asked for."""
        status = answer.status_code
        if status == 206 and _begins_at(answer.headers.get("Content-Range"), partial.n_bytes, file.n_bytes):
            return
        if status == 200:
            if partial.n_bytes:
                partial.restart()  # the server does not know ranges
            return
        if status in (206, 416):
            partial.restart()
            raise _Again("the server answered with other bytes than were asked for")
        if status in (401, 403):
            raise AccessDenied(
                f"the hub refuses {file.path} ({status})", fix="accept the model's terms on its page, then set HF_TOKEN"
            )
        if status in (404, 410):
            raise NotOffered(f"the hub has no {file.path} any more ({status})", fix="garra models search NAME")
        if status in (408, 425, 429) or status >= 500:
            raise _Again(f"the hub answers with {status}", retry_after_s(answer.headers.get("Retry-After")))
        raise DownloadFailed(f"cannot download {file.path}: the hub answers with {status}")


def retry_after_s(header: str | None) -> float | None:
    """Seconds a server asks to wait; dates are not read."""
    return float(header) if header is not None and re.fullmatch(r"\d{1,6}", header.strip()) else None


def _begins_at(content_range: str | None, begin: int, total: int) -> bool:
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", content_range or "")
    return match is not None and int(match[1]) == begin and match[3] in ("*", str(total))


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    default = {"http": 80, "https": 443}.get(url.scheme)
    return (url.scheme, url.host, url.port or default)
