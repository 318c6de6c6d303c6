"""One resumable download over HTTP: Range requests, retries, free space checked first."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tokenspeed.appliance.packages import Settings
from tokenspeed.errors import Problem, TryAgainError

CHUNK_BYTES = 1 << 20
PART = ".part"  # how the name of a part ends that the next call goes on with
# Left free on the disk beside what is fetched: a full root file system breaks more than us.
RESERVE_BYTES = 64 << 20

OnBytes = Callable[[int, int], None]
"""Called with bytes done and bytes in all (0: not known)."""


class PipMustDoIt(Exception):  # noqa: N818 - not a failure: the way on is known
    """The server wants a login or a trust that only pip's own client can give."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a download that makes no progress is tried again; waits double from the first."""

    attempts: int = 6
    first_wait_seconds: float = 0.5


class Client:
    """Opens addresses with the proxy and the certificates that pip is set up with.

    `wanted` is called between pieces and while waiting; it may raise to give up.
    """

    def __init__(
        self,
        settings: Settings,
        patience: Patience | None = None,
        wanted: Callable[[], None] = lambda: None,
    ) -> None:
        self._wanted = wanted
        self._timeout = settings.timeout
        self._patience = patience or Patience()
        context = ssl.create_default_context(cafile=settings.certificates)
        if settings.client_certificate:
            context.load_cert_chain(settings.client_certificate)
        proxies = None
        if settings.proxy:
            proxies = {"http": settings.proxy, "https": settings.proxy}
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=context)
        )

    def size(self, url: str) -> int | None:
        """Bytes behind `url`, None when the server does not say."""
        try:
            with self._open(urllib.request.Request(url, method="HEAD")) as response:
                length = response.headers.get("Content-Length", "")
        except (OSError, http.client.HTTPException):
            return None
        return int(length) if length.isdigit() else None

    def fetch(self, url: str, partial: Path, on_bytes: OnBytes, extra_bytes: int = 0) -> None:
        """Fills `partial`, going on where an earlier call stopped. The caller checks its hash.

        `extra_bytes` is room needed beside the download itself. Raises TryAgainError, or
        PipMustDoIt.
        """
        tries = 0
        while True:
            before = _size(partial)
            try:
                self._attempt(url, partial, on_bytes, extra_bytes)
                return
            except (OSError, http.client.HTTPException) as error:
                _raise_if_final(url, error)
                tries = 1 if _size(partial) > before else tries + 1
                if tries >= self._patience.attempts:
                    raise _gave_up(url, partial, error) from error
            self._wait(tries)

    def _open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            error.close()  # code, reason and headers stay
            raise
        return response

    def _wait(self, tries: int) -> None:
        until = time.monotonic() + min(8.0, self._patience.first_wait_seconds * 2 ** (tries - 1))
        while (left := until - time.monotonic()) > 0:
            self._wanted()
            time.sleep(min(0.1, left))

    def _attempt(self, url: str, partial: Path, on_bytes: OnBytes, extra_bytes: int) -> None:
        offset = _size(partial)
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        try:
            response = self._open(request)
        except urllib.error.HTTPError as error:
            # The whole file is here already, or more than that: then it is another file.
            if error.code == 416 and offset:
                if error.headers.get("Content-Range") == f"bytes */{offset}":
                    return
                partial.unlink()
            raise
        with response:
            if response.status == 206:
                _check_range(response.headers.get("Content-Range", ""), offset)
            else:
                offset = 0
            length = response.headers.get("Content-Length", "")
            total = offset + int(length) if length.isdigit() else 0
            check_room(partial.parent, max(0, total - offset) + extra_bytes)
            with partial.open("ab" if offset else "wb") as file:
                self._copy(response, file, offset, total, on_bytes)

    def _copy(
        self,
        source: http.client.HTTPResponse,
        file: IO[bytes],
        done: int,
        total: int,
        on_bytes: OnBytes,
    ) -> None:
        on_bytes(done, total)
        while chunk := source.read1(CHUNK_BYTES):
            file.write(chunk)
            done += len(chunk)
            on_bytes(done, total)
            self._wanted()
        file.flush()
        os.fsync(file.fileno())
        if done < total:
            raise http.client.IncompleteRead(b"", total - done)


WAY_OUT = "free some space, or set XDG_DATA_HOME to a folder on a larger disk"


def check_room(folder: Path, need_bytes: int, way_out: str = WAY_OUT) -> None:
    """Raises TryAgainError when the disk of `folder` has not got `need_bytes` to spare."""
    free = shutil.disk_usage(folder).free
    if free < need_bytes + RESERVE_BYTES:
        raise TryAgainError(
            Problem(
                code="TS-S104",
                message=f"not enough room in {folder}: {_mb(need_bytes + RESERVE_BYTES)} needed, "
                f"{_mb(free)} free",
                hint=way_out,
            )
        )


def _raise_if_final(url: str, error: Exception) -> None:
    """Ends the retries where another try can give nothing else."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise PipMustDoIt(str(reason)) from error
    if not isinstance(error, urllib.error.HTTPError):
        return
    if error.code in (401, 403, 407):
        raise PipMustDoIt(f"{error.code} {error.reason}") from error
    if 400 <= error.code < 500 and error.code not in (408, 416, 425, 429):
        raise TryAgainError(
            Problem(
                code="TS-S105",
                message=f"{redacted(url)}: {error.code} {error.reason}",
                hint="the index lists this file but does not serve it; try again later",
            )
        ) from error


def _gave_up(url: str, partial: Path, error: Exception) -> TryAgainError:
    return TryAgainError(
        Problem(
            code="TS-S106",
            message=f"{redacted(url)}: {error}",
            hint=f"{_mb(_size(partial))} are kept; the same command resumes from there",
        )
    )


def _check_range(content_range: str, offset: int) -> None:
    start = re.match(r"bytes (\d+)-", content_range)
    if start is None or int(start[1]) != offset:
        raise http.client.HTTPException(f"asked for bytes from {offset}, got {content_range!r}")


def redacted(url: str) -> str:
    """The address without a login in it and without a query, which may hold a token."""
    return re.sub(r"//[^/@]*@", "//", url).split("?")[0]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
