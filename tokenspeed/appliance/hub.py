"""Models of a repository that speaks Hugging Face's protocol, fetched with its own library.

Where it asks, and through which proxy, is the library's own business (HF_ENDPOINT). It keeps files
by content, but never takes up the part of a process that was killed. So large files, whose SHA-256
the repository tells, are fetched here, in parallel, into parts with a name of their own: the next
process goes on from there. A whole one is checked and put where the library looks for it; the
small rest and the folder of links are its work.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.constants import MAX_HTTP_DOWNLOAD_SIZE
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoFile, RepoFolder
from tqdm import tqdm

from tokenspeed.appliance.download import PART, check_room
from tokenspeed.appliance.watch import Watch
from tokenspeed.checkpoint.hub import fetched
from tokenspeed.checkpoint.source import Source
from tokenspeed.errors import CheckpointError, Problem, TryAgainError

WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
# The same weights once more, in another form.
DOUBLE = ("original/*", "consolidated*", "onnx/*", "*.fp16.*", "*.bin.index.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")
WORKERS = 8
STALE_SECONDS = 60.0
# Of the HTTP client under the library, which is another one in its next version.
_ClientError: type[Exception] = errors.HfHubHTTPError.__bases__[0]
# SHA-256 of a file, hex; the second argument is called now and then and may raise to give up.
HashFile = Callable[[Path, Callable[[], None]], str]


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    sha256: str
    bytes: int


def fetch(
    store: Path,
    source: Source,
    work: Path,
    watch: Watch,
    token: str | None,
    hash_file: HashFile,
) -> Path:
    """The folder of the model; all of it is there. Parts that end in PART stay in `work` for the
    next call. Raises CheckpointError when the repository has not got it for us, TryAgainError when
    the network is at fault."""
    watch.stage(f"fetch: {source.text}")
    blobs = store / "hub" / f"models--{source.name.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    for left in blobs.glob("*.incomplete"):
        # The library's own, of a process that was killed; one that fetches another revision
        # writes to its own.
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            left.unlink()
    try:
        api = huggingface_hub.HfApi(token=token or False)
        commit = str(api.model_info(source.name, revision=source.version or None).sha)
        tree = api.list_repo_tree(source.name, recursive=True, revision=commit)
        parts = _Parts(source, commit, work, blobs, watch, token, hash_file)
        checked = parts.fetch(_large(tree))
        snapshot = Path(
            huggingface_hub.snapshot_download(
                source.name,
                revision=commit,
                cache_dir=store / "hub",
                allow_patterns=list(WANTED),
                ignore_patterns=list(DOUBLE),
                token=token or False,
                max_workers=WORKERS,
                tqdm_class=_bar(partial(_tell, watch)),
            )
        )
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        raise _not_ours(source, error) from error
    except errors.RevisionNotFoundError as error:
        raise _not_there(source, error) from error
    except (OSError, _ClientError) as error:
        raise _failed(source, error) from error
    _check(snapshot, checked, source, watch, hash_file)
    link = fetched(store, source)
    link.parent.mkdir(parents=True, exist_ok=True)
    draft = link.with_name(f"{link.name}.new")
    draft.unlink(missing_ok=True)
    draft.symlink_to(snapshot)
    draft.replace(link)
    return link


def _large(tree: Iterable[RepoFile | RepoFolder]) -> list[_File]:
    """The files that are kept by their SHA-256; of those with one content, one. The largest of
    all are not to be had over plain HTTP."""
    found = {
        file.lfs.sha256: _File(file.path, file.lfs.sha256, file.lfs.size)
        for file in tree
        if isinstance(file, RepoFile) and file.lfs and file.lfs.size <= MAX_HTTP_DOWNLOAD_SIZE
        # It becomes the name of a file, and a server could say anything.
        if _SHA256.fullmatch(file.lfs.sha256)
        if any(fnmatch(file.path, pattern) for pattern in WANTED)
        if not any(fnmatch(file.path, pattern) for pattern in DOUBLE)
    }
    return list(found.values())


class _Parts:
    """Downloads of one commit's large files, several at a time."""

    def __init__(
        self,
        source: Source,
        commit: str,
        work: Path,
        blobs: Path,
        watch: Watch,
        token: str | None,
        hash_file: HashFile,
    ) -> None:
        self._source = source
        self._commit = commit
        self._work = work
        self._blobs = blobs
        self._watch = watch
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._hash_file = hash_file
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._done = self._total = 0

    def fetch(self, files: list[_File]) -> set[str]:
        """Whole and checked, each is among the blobs; returns the names of those that were not."""
        missing = [file for file in files if not (self._blobs / file.sha256).exists()]
        self._done = sum(self._kept(file) for file in missing)
        self._total = sum(file.bytes for file in missing)
        check_room(self._work, self._total - self._done)
        with ThreadPoolExecutor(WORKERS) as pool:
            try:
                for one in as_completed([pool.submit(self._one, file) for file in missing]):
                    one.result()
            except BaseException:
                self._over.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return {file.sha256 for file in missing}

    def _one(self, file: _File) -> None:
        part = self._part(file)
        # What an earlier process left may be bad, after a power cut for one: a new one decides.
        for fresh in (not part.exists(), True):
            self._download(file, part)
            if self._hash_file(part, self._wanted) == file.sha256:
                part.replace(self._blobs / file.sha256)
                return
            part.unlink()
            self._count(-file.bytes)
            if fresh:
                break
        raise _damaged(self._source, file.name)

    def _download(self, file: _File, part: Path) -> None:
        with part.open("ab") as copy:

            def on_bytes(more: int, done: int, total: int) -> None:
                if copy.tell() > file.bytes:
                    raise OSError(f"{file.name} is longer than the {file.bytes} bytes announced")
                self._count(more)

            http_get(
                huggingface_hub.hf_hub_url(self._source.name, file.name, revision=self._commit),
                copy,
                resume_size=copy.tell(),
                headers=self._headers,
                expected_size=file.bytes,
                tqdm_class=_bar(on_bytes),
            )
            copy.flush()
            os.fsync(copy.fileno())

    def _part(self, file: _File) -> Path:
        return self._work / f"{file.sha256}{PART}"

    def _kept(self, file: _File) -> int:
        part = self._part(file)
        if not part.exists():
            return 0
        if part.stat().st_size > file.bytes:
            part.unlink()
            return 0
        return part.stat().st_size

    def _count(self, more: int) -> None:
        with self._lock:
            self._done += more
            done = self._done
        self._watch.on_bytes(min(done, self._total), self._total)
        self._wanted()

    def _wanted(self) -> None:
        if self._over.is_set():
            raise InterruptedError("another file cannot be had")
        self._watch.wanted()


def _check(
    snapshot: Path,
    checked: set[str],
    source: Source,
    watch: Watch,
    hash_file: HashFile,
) -> None:
    for path in sorted(snapshot.rglob("*")):
        blob = path.resolve()
        if blob.name in checked or not path.is_file() or not _SHA256.fullmatch(blob.name):
            continue
        watch.stage(f"fetch: checking {path.name}")
        if hash_file(blob, watch.wanted) != blob.name:
            blob.unlink()
            raise _damaged(source, path.name)


def _bar(tell: Callable[[int, int, int], None]) -> type[Any]:
    class Bar(tqdm):  # type: ignore[misc]
        """Tells of more bytes, bytes done and bytes in all; shows nothing itself."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*args, **options | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self._counts_bytes:
                tell(int(n or 0), int(self.n), int(self.total or 0))

    return Bar


def _tell(watch: Watch, more: int, done: int, total: int) -> None:
    watch.wanted()
    watch.on_bytes(done, total)


def _damaged(source: Source, name: str) -> TryAgainError:
    return TryAgainError(
        Problem(
            code="TS-S118",
            path="model.source",
            message=f"{name} of {source.text} arrived damaged and was deleted",
            hint="run the same command again",
        )
    )


def _not_ours(source: Source, error: Exception) -> CheckpointError:
    return CheckpointError(
        Problem(
            code="TS-S117",
            path="model.source",
            message=f"{source.text} does not exist, or is not public: {_first_line(error)}",
            hint="accept its terms on its page, and name a token's place, as in model.token: "
            "env:HF_TOKEN",
        )
    )


def _not_there(source: Source, error: Exception) -> CheckpointError:
    return CheckpointError(
        Problem(
            code="TS-S117",
            path="model.source",
            message=f"{source.text} has no such revision: {_first_line(error)}",
            hint="write hf:org/name@REVISION with one of its branches, tags or commits",
        )
    )


def _failed(source: Source, error: Exception) -> TryAgainError:
    return TryAgainError(
        Problem(
            code="TS-S118",
            path="model.source",
            message=f"{source.text} cannot be fetched: {_first_line(error)}",
            hint="what arrived is kept; the same command resumes from there",
        )
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
