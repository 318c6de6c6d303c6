"""Models of a repository that speaks Hugging Face's protocol, fetched with its own library.

It downloads in parallel, goes on where a connection broke, and keeps files by content. After a
killed process the files that were whole stay, and the one it was at begins anew: the library never
takes up another process's part. Where it asks is its own business (HF_ENDPOINT). Files whose name
is their SHA-256 are checked against it here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors
from tqdm import tqdm

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
# SHA-256 of a file, hex; the second argument is called now and then and may raise to give up.
HashFile = Callable[[Path, Callable[[], None]], str]


def fetch(
    store: Path,
    source: Source,
    watch: Watch,
    token: str | None,
    hash_file: HashFile,
) -> Path:
    """The folder of the model; all of it is there. Raises CheckpointError when the repository
    has not got it for us, TryAgainError when the network is at fault."""
    watch.stage(f"fetch: {source.text}")
    name = f"models--{source.name.replace('/', '--')}"
    for part in (store / "hub" / name / "blobs").glob("*.incomplete"):
        # Of a process that was killed; one that fetches another revision writes to its own.
        if time.time() - part.stat().st_mtime > STALE_SECONDS:
            part.unlink()
    try:
        snapshot = Path(
            huggingface_hub.snapshot_download(
                source.name,
                revision=source.version or None,
                cache_dir=store / "hub",
                allow_patterns=list(WANTED),
                ignore_patterns=list(DOUBLE),
                token=token or False,
                max_workers=WORKERS,
                tqdm_class=_bar(watch),
            )
        )
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        raise _not_ours(source, error) from error
    except errors.RevisionNotFoundError as error:
        raise _not_there(source, error) from error
    except (OSError, errors.HfHubHTTPError) as error:
        raise _failed(source, error) from error
    _check(snapshot, source, watch, hash_file)
    link = fetched(store, source)
    link.parent.mkdir(parents=True, exist_ok=True)
    draft = link.with_name(f"{link.name}.new")
    draft.unlink(missing_ok=True)
    draft.symlink_to(snapshot)
    draft.replace(link)
    return link


def _check(
    snapshot: Path,
    source: Source,
    watch: Watch,
    hash_file: HashFile,
) -> None:
    for path in sorted(snapshot.rglob("*")):
        blob = path.resolve()
        if not path.is_file() or not _SHA256.fullmatch(blob.name):
            continue
        watch.stage(f"fetch: checking {path.name}")
        if hash_file(blob, watch.wanted) != blob.name:
            blob.unlink()
            raise TryAgainError(
                Problem(
                    code="TS-S118",
                    path="model.source",
                    message=f"{path.name} of {source.text} arrived damaged and was deleted",
                    hint="run the same command again",
                )
            )


def _bar(watch: Watch) -> type[Any]:
    class Bar(tqdm):  # type: ignore[misc]
        """Tells the watch of bytes; shows nothing itself."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*args, **options | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            watch.wanted()
            if self._counts_bytes:
                watch.on_bytes(int(self.n), int(self.total or 0))

    return Bar


def _not_ours(source: Source, error: Exception) -> CheckpointError:
    return CheckpointError(
        Problem(
            code="TS-S117",
            path="model.source",
            message=f"{source.text} is not there, or not for everybody: {_first_line(error)}",
            hint="accept its terms on its page, and say where a token is, as in model.token: "
            "env:HF_TOKEN",
        )
    )


def _not_there(source: Source, error: Exception) -> CheckpointError:
    return CheckpointError(
        Problem(
            code="TS-S117",
            path="model.source",
            message=f"{source.text} has no such revision: {_first_line(error)}",
            hint="write hf:org/name@REVISION with a branch, a tag or a commit of it",
        )
    )


def _failed(source: Source, error: Exception) -> TryAgainError:
    return TryAgainError(
        Problem(
            code="TS-S118",
            path="model.source",
            message=f"{source.text} cannot be fetched: {_first_line(error)}",
            hint="files that arrived whole stay, and the next try fetches the rest",
        )
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
