"""A model from the hub to this machine as one artifact: whole, verified, looked into, or not visible at all.

Blocking: for the worker's threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from garra.errors import BadModel, Refused, Stopped
from garra.registry import disk, gguf, hashing, names
from garra.registry.catalog import Artifact, Catalog, StoredFile, facts_of, now, warnings_of
from garra.registry.header import Header
from garra.registry.hub import Hub, RemoteRepo
from garra.registry.hubcache import RepoCache
from garra.registry.names import RemoteFile, Variant
from garra.registry.source import HubSource
from garra.spec import MIB

HEAD_BYTES = (8 * MIB, 64 * MIB)
"""What is read of a file for its header: the second where the first was not enough."""
_LOCK_POLL_S = 0.2

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is taken of a repository."""

    model: Variant
    projector: RemoteFile | None = None
    draft: RemoteFile | None = None

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """The model's first, then what goes with it."""
        beside = [file for file in (self.projector, self.draft) if file is not None]
        return (*self.model.files, *beside)

    def role(self, file: RemoteFile) -> str:
        return "projector" if file is self.projector else "draft" if file is self.draft else "model"


def choose(repo: RemoteRepo, source: HubSource, *, projector: bool, sha256: str | None = None) -> Choice:
    """The files a reference means. Raises NotOffered, Refused."""
    model = names.pick(source, repo.files)
    if sha256 is not None and sha256 not in (model.files[0].sha256, None):
        raise BadModel(
            f"{repo.repo} offers {model.files[0].path} with another checksum than the profile expects "
            f"({(model.files[0].sha256 or 'none')[:12]}, not {sha256[:12]}): nothing was downloaded",
            fix="check sha256 in the profile",
        )
    seen = names.projector_of(repo.files) if projector else None
    return Choice(model, seen if seen not in model.files else None, names.draft_of(repo.files, model))


def reference(repo: RemoteRepo, choice: Choice) -> str:
    """The one way to write it, however it was asked for: by quantisation where that is clear, else by file."""
    model = choice.model
    alike = [one for one in names.variants(repo.files) if one.label.upper() == model.label.upper()]
    if len(alike) == 1 and names.quant_of(model.files[0].path) is not None:
        return HubSource(repo.repo, quant=model.label).ref
    return HubSource(repo.repo, file=model.files[0].path).ref


class Puller:
    """One artifact's way here."""

    def __init__(self, hub: Hub, repo: RemoteRepo, choice: Choice, tell: Tell, stop: threading.Event) -> None:
        self._hub = hub
        self._repo = repo
        self._choice = choice
        self._tell = tell
        self._stop = stop
        self._cache = RepoCache(repo.repo)
        self._files = tuple({file.blob: file for file in choice.files}.values())
        self._done = dict.fromkeys((file.blob for file in self._files), 0)

    def head(self, folder: Path) -> Path:
        """Files of the model's full size that hold its header, and holes for the rest; the path of the first.

        What is read for them is kept: the download goes on from there.
        """
        home = folder / self._choice.model.files[0].blob
        try:
            home.mkdir(parents=True, exist_ok=True)
            found = [self._head(file, home / PurePosixPath(file.path).name) for file in self._choice.model.files]
        except OSError as error:
            raise disk.refused(error, home, HEAD_BYTES[0]) from None
        return found[0]

    def _head(self, file: RemoteFile, target: Path) -> Path:
        for n_bytes in () if target.exists() else HEAD_BYTES:
            here = self._beginning(file, n_bytes)
            fresh = target.with_name(f".{os.getpid()}.{target.name}")
            with here.open("rb") as begin, fresh.open("wb") as sparse:
                sparse.write(begin.read(n_bytes))
                sparse.truncate(file.n_bytes)
            try:
                gguf.read(fresh)
            except BadModel:
                fresh.unlink()
                if n_bytes == HEAD_BYTES[-1] or n_bytes >= file.n_bytes:
                    raise
                continue
            fresh.replace(target)
            break
        return target

    def _beginning(self, file: RemoteFile, n_bytes: int) -> Path:
        if self._cache.has(file):
            return self._cache.blob(file)
        partial = self._cache.partial(file)
        with ExitStack() as stack:
            stack.enter_context(self._cache.lock(file, self._wait))
            if self._cache.has(file):
                return self._cache.blob(file)
            transfer = self._hub.transfer()
            stack.callback(transfer.close)
            transfer.fetch(self._hub.url(self._repo, file), file, partial, lambda _: None, until=n_bytes)
        return partial

    def run(self, catalog: Catalog) -> Artifact:
        """The artifact, visible from now on. Raises what keeps it from that; what has come stays."""
        try:
            self._check_space()
            for file in self._files:
                self._bring(file, catalog)
            header = self._look_into()
            artifact = self._artifact(header)
            catalog.keep_if_possible(artifact)  # first: who is killed in between has a model to pull again
            self._cache.publish(self._repo.commit, self._choice.files)
        except OSError as error:
            raise disk.refused(error, self._cache.root, self._cache.missing_bytes(self._files)) from None
        return artifact

    def abandon(self) -> None:
        """Remove what came of files that are not whole."""
        for file in self._files:
            self._cache.partial(file).unlink(missing_ok=True)

    def _check_space(self) -> None:
        self._cache.blobs.mkdir(parents=True, exist_ok=True)
        missing = self._cache.missing_bytes(self._files)
        disk.check_space(self._cache.blobs, missing, fix="set HF_HUB_CACHE to another disk")

    def _bring(self, file: RemoteFile, catalog: Catalog) -> None:
        with self._cache.lock(file, self._wait):
            if self._cache.has(file):
                self._prove(file, catalog)
            else:
                transfer = self._hub.transfer()
                try:
                    moved = self._counter(file)
                    transfer.fetch(self._hub.url(self._repo, file), file, self._cache.partial(file), moved)
                finally:
                    transfer.close()
                self._judge(file)
                self._cache.keep(file)
        self._counter(file)(file.n_bytes)

    def _prove(self, file: RemoteFile, catalog: Catalog) -> None:
        """What another program brought was perhaps never hashed: it is now, once. Raises BadModel."""
        if catalog.proved(file.blob):
            return
        blob, digest, count = self._cache.blob(file), hashing.of_blob(file), self._counter(file)
        done = 0

        def moved(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            count(done)
            if self._stop.is_set():
                raise Stopped("it was stopped")

        if hashing.of_file(blob, digest, moved) != file.blob:
            raise BadModel(
                f"{blob} is damaged: it does not have the hash it is called after", fix=f"rm {blob}, then this again"
            )

    def _judge(self, file: RemoteFile) -> None:
        """A verified file is looked into before it gets its name. Raises BadModel."""
        partial = self._cache.partial(file)
        try:
            header = gguf.read(partial)
            shard = names.shard_of(file.path)
            told = header.number("split.count", 1)
            if shard is not None and told != shard[1]:
                raise BadModel(
                    f"it is called shard {shard[0]} of {shard[1]}, and says that it is one of {told}",
                    fix="ask its publisher",
                )
        except BadModel as error:
            partial.unlink(missing_ok=True)
            raise BadModel(
                f"{self._repo.repo} offers a broken {file.path}: {error.what.replace(str(partial), 'it')}",
                fix="take another repository: garra models search NAME",
            ) from None

    def _look_into(self) -> Header:
        header = gguf.read(self._cache.blob(self._choice.model.files[0]))  # of shards the first has all key-values
        if not header.text("general.architecture"):
            raise Refused(f"{self._choice.model.files[0].path} holds no model: it names no architecture")
        return header

    def _artifact(self, header: Header) -> Artifact:
        files = tuple(
            StoredFile(
                self._choice.role(file),
                str(self._cache.place(self._repo.commit, file)),
                file.n_bytes,
                file.sha256,
                now(),
            )
            for file in self._choice.files
        )
        facts = facts_of(header) | {"quantisation": names.quant_of(self._choice.model.files[0].path) or ""}
        return Artifact(
            ref=reference(self._repo, self._choice),
            origin="hub",
            path=files[0].path,
            n_bytes=sum(file.n_bytes for file in files),
            files=files,
            revision=self._repo.commit,
            publisher=self._repo.publisher,
            licence=self._repo.licence,
            base_model=self._repo.base_model,
            facts=facts,
            warnings=warnings_of(header),
        )

    def _counter(self, file: RemoteFile) -> Callable[[int], None]:
        total = sum(one.n_bytes for one in self._files)

        def moved(n_bytes: int) -> None:
            self._done[file.blob] = n_bytes
            done = sum(self._done.values())
            self._tell({"state": "downloading", "file": file.path, "done_bytes": done, "total_bytes": total})

        return moved

    def _wait(self) -> None:
        self._tell({"state": "waiting", "why": "another download of the same file goes on"})
        if self._stop.wait(_LOCK_POLL_S):
            raise Stopped("it was stopped while it waited for another download of the same file")
